"""Paths of a program that come with the job: relative to the folder of its bundle."""

import posixpath
import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from muster.domain.strict import Line, absolute_path

BUNDLE_IN_CONTAINER: Final = "/muster/bundle"
"""Where a container sees the bundle's folder."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def bundle_digest(text: str) -> str:
    """Return ``text``. Raise ValueError where it is no SHA-256 in lower-case hexadecimal digits."""
    if not _DIGEST.fullmatch(text):
        raise ValueError("must be the bundle's digest: 64 hexadecimal digits in lower case")
    return text


def plain_path(text: str) -> str:
    """Return ``text``. Raise ValueError where it is no path inside of a folder, or no normal form of one."""
    if text.startswith(("/", "../")) or text in {"", ".", ".."} or posixpath.normpath(text) != text:
        raise ValueError("must be a path inside of the bundle's folder without '..', '.' or doubled slashes")
    return text


def path_of_program(text: str, *, has_bundle: bool) -> str:
    """Return ``text``. Raise ValueError unless it is absolute, or a path in the bundle where the job has one."""
    if has_bundle and not text.startswith("/"):
        return plain_path(text)
    return absolute_path(text)


def command_of_program(argv: tuple[str, ...], *, has_bundle: bool) -> tuple[str, ...]:
    """Return ``argv``. Raise ValueError where its first word is a relative path that leaves the bundle's folder.

    As in a shell, a word without a slash is looked for on the program's PATH, and ``./run.sh`` is a file.
    """
    if has_bundle and argv and is_in_bundle(argv[0]):
        plain_path(argv[0].removeprefix("./"))
    return argv


def is_in_bundle(command: str) -> bool:
    """Return whether the first word of a command with a bundle is a file of it."""
    return "/" in command and not command.startswith("/")


def is_taken_by_bundle(target: str) -> bool:
    """Return whether a mount at ``target`` would hide the bundle's folder in a container, or a part of it."""
    return f"{BUNDLE_IN_CONTAINER}/".startswith(f"{target}/") or target.startswith(f"{BUNDLE_IN_CONTAINER}/")


ProgramPath = Line
"""Checked by ``path_of_program``, since what it may be depends on the bundle."""
BundleDigest = Annotated[str, AfterValidator(bundle_digest), Field(max_length=64)]
