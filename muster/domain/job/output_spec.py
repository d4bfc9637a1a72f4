"""Patterns of a job's outputs: files of its working folder that are collected."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from muster.domain.strict import Printable

MOST_PATTERNS: Final = 100
_ANY_DEPTH: Final = "**"


def output_pattern(text: str) -> str:
    """Return ``text``. Raise ValueError where it is no pattern of paths inside of a folder."""
    if text.startswith("/"):
        raise ValueError(f"{text!r} is absolute: outputs are paths in the working folder, such as 'models/**'")
    for part in text.split("/"):
        if part == "..":
            raise ValueError(f"{text!r} has '..': outputs do not leave the working folder")
        if part in {"", "."}:
            raise ValueError(f"{text!r} has an empty part or '.': write 'models/**' for all files of a folder")
        if _ANY_DEPTH in part and part != _ANY_DEPTH:
            raise ValueError(f"{text!r} has '**' next to other characters: it stands alone between slashes")
    return text


OutputPattern = Annotated[Printable, AfterValidator(output_pattern)]
OutputPatterns = Annotated[tuple[OutputPattern, ...], Field(max_length=MOST_PATTERNS, strict=False)]
