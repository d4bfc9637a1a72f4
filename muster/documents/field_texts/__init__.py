"""One text for each field of the API: OpenAPI, the help of the command and the reference page take it from here.

A field whose class says more of it, in its docstring or below the field, has that text instead. ``Class.field`` is for
a field that means something else elsewhere, and ``operation.parameter`` for such a parameter. Where the sentence does
not fit an option of the command, a ``FieldText`` has a short form too.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from muster.documents.field_texts.everywhere import EVERYWHERE_TEXTS
from muster.documents.field_texts.fleet import FLEET_TEXTS
from muster.documents.field_texts.job_spec import JOB_SPEC_TEXTS
from muster.documents.field_texts.jobs import JOB_TEXTS
from muster.documents.field_texts.money import MONEY_TEXTS
from muster.documents.field_texts.notifications import NOTIFICATION_TEXTS
from muster.documents.field_texts.objectives import OBJECTIVE_TEXTS
from muster.documents.field_texts.parameters import PARAMETER_TEXTS
from muster.documents.field_texts.system import SYSTEM_TEXTS
from muster.documents.field_texts.text import FieldText

__all__ = ["FIELD_TEXTS", "PARAMETER_TEXTS", "FieldText", "text_of"]

FIELD_TEXTS: Final[Mapping[str, str]] = MappingProxyType(
    EVERYWHERE_TEXTS
    | JOB_TEXTS
    | JOB_SPEC_TEXTS
    | FLEET_TEXTS
    | OBJECTIVE_TEXTS
    | SYSTEM_TEXTS
    | MONEY_TEXTS
    | NOTIFICATION_TEXTS
)


def text_of(schema: str, field: str) -> str | None:
    """Return what a field of a schema means; None if there is no text."""
    return FIELD_TEXTS.get(f"{schema}.{field}", FIELD_TEXTS.get(field))
