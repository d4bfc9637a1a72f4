"""The environment of a job's program: a lock file in its bundle, and how packages are installed from it."""

import re
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from muster.domain.job.bundle_spec import plain_path
from muster.domain.strict import Line, StrictModel

UV_LOCK: Final = "uv.lock"
_WORD: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_PATTERN: Final = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9._*?-]{0,127}")


def _lock(text: str) -> str:
    plain_path(text)
    name = text.rpartition("/")[2]
    if name != UV_LOCK and not name.endswith(".txt"):
        raise ValueError("must be the path of a `uv.lock`, or of a `.txt` of requirements with hashes, in the bundle")
    return text


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError("must be a name: letters, digits, dot, dash and underscore, 128 at most")
    return text


def _pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise ValueError("must be the name of a package, or a pattern of such names with * and ?")
    return text


LockPath = Annotated[Line, AfterValidator(_lock)]
ExtraName = Annotated[str, AfterValidator(_word), Field(max_length=128)]
PackagePattern = Annotated[str, AfterValidator(_pattern), Field(max_length=128)]


class Environment(StrictModel):
    """A Python environment that is built once from a lock file of the bundle, and is the same on each host."""

    lock: LockPath
    extras: tuple[ExtraName, ...] = Field(default=(), max_length=64, strict=False)
    groups: tuple[ExtraName, ...] = Field(default=(), max_length=64, strict=False)
    from_host: tuple[PackagePattern, ...] = Field(default=(), max_length=64, strict=False)
    allows_source: bool = False

    @model_validator(mode="after")
    def _extras_are_of_a_project(self) -> Self:
        if self.lock.rpartition("/")[2] != UV_LOCK and (self.extras or self.groups):
            raise ValueError(f"`extras` and `groups` are of a `{UV_LOCK}`, and {self.lock} is none; leave them out")
        return self
