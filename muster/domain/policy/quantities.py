"""Kinds of number that a policy holds, with what is accepted of each."""

from typing import Annotated, Final

from pydantic import Field

MOST_S: Final = 31_536_000
"""A year: no span that a policy or a job names is longer."""
Seconds = Annotated[float, Field(gt=0, le=MOST_S, strict=False)]
Fraction = Annotated[float, Field(gt=0, le=1, strict=False)]
Points = Annotated[float, Field(ge=0, le=100, strict=False)]
PositivePoints = Annotated[float, Field(gt=0, le=100, strict=False)]
Percent = Annotated[float, Field(ge=1, le=100, strict=False)]
Number = Annotated[int, Field(ge=1, le=1_000_000)]
Days = Annotated[int, Field(ge=1, le=3650)]

DAY_S: Final = 86_400.0
STATE_REPORT_S: Final = 3_600.0
"""Seconds after which agents report an unchanged state again."""
