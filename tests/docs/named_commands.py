"""Every ``muster`` command that a document names, and whether the command itself would take its words."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

from muster.cli.framework.app import app

_FENCE: Final = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)
_FENCED: Final = re.compile(r"^```(?:sh|console)[^\n]*\n(?P<text>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_INLINE: Final = re.compile(r"`(?P<words>(?:\.venv/bin/)?muster [^`]+)`")
_IN_SCRIPT: Final = re.compile(
    r"(?:^|[|;(]|&&|\bdo\b|\bthen\b)\s*(?:\$ )?(?:\.venv/bin/)?(?P<words>muster [^\n]+)", re.MULTILINE
)
_UNFINISHED: Final = frozenset({"MissingParameter", "NoArgsIsHelpError"})
"""Typer keeps the classes to itself."""
_ENDS: Final = frozenset(";|&()<>")


@dataclass(frozen=True, slots=True)
class Named:
    """One command as a document has it, up to what the shell does with its answer.

    ``is_whole``: it stands in a block, to be typed; in the text one may be named without all of its words.
    """

    document: str
    words: tuple[str, ...]
    is_whole: bool = True


def commands_in(path: Path) -> list[Named]:
    """In the text and in the blocks in ``sh`` and ``console``."""
    content = path.read_text(encoding="utf-8")
    spans = [(match["words"], False) for match in _INLINE.finditer(_FENCE.sub("", content))]
    for block in _FENCED.finditer(content):
        script = block["text"].replace("\\\n", " ")
        spans += [(match["words"], True) for match in _IN_SCRIPT.finditer(script)]
    return [Named(path.name, tuple(_words(text)), is_whole) for text, is_whole in spans]


def _words(text: str) -> Iterator[str]:
    """Of the command alone: what a shell would treat as its end ends it."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    for word in lexer:
        if word and set(word) <= _ENDS:
            return
        yield word


def fault_of(named: Named) -> str | None:
    """What the command's own parser has against it, or None. Nothing is carried out."""
    command: Any = typer.main.get_command(app)
    context, rest = None, list(named.words[1:])
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            while True:
                context = command.make_context(command.name, rest, parent=context)
                if not hasattr(command, "resolve_command"):
                    return None
                _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
    except typer.Exit:
        return None  # --help and --version are answered at once
    except Exception as fault:  # noqa: BLE001  # whatever the parser says is the finding
        if not named.is_whole and type(fault).__name__ in _UNFINISHED:
            return None
        return f"{named.document}: {' '.join(named.words)}: {getattr(fault, 'message', None) or fault!r}"
