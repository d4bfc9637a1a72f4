"""Texts of a file that people read: docstrings, comments, string literals, prose of pages, text of templates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from tools.words.python_texts import Text, python_texts

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMENTED: Final = frozenset(
    {".sh", ".yml", ".yaml", ".toml", ".ini", ".cfg", ".conf", ".service", ".css", ".js", ".env", ".Dockerfile"}
)
_FENCE: Final = re.compile(r"^ *(```|~~~)")
_SPAN: Final = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<[^>]+>")
_TAGS: Final = re.compile(r"<(?:script|style)\b.*?</(?:script|style)>|{%.*?%}|{{.*?}}|<[^>]*>", re.DOTALL)
_JINJA_COMMENT: Final = re.compile(r"{#(.*?)#}", re.DOTALL)
_TITLE: Final = re.compile(r"""\b(?:title|aria-label|placeholder|alt)="([^"{]*)""")
_JS_STRING: Final = re.compile(r"""(["'`])((?:(?!\1)[^\\\n]|\\.)*)\1""")
_HASH: Final = re.compile(r"(?:^|\s)#(?!!)\s?(.*)")
_ECHOED: Final = re.compile(r"@echo '([^'\n]*)'")
_SLASHES: Final = re.compile(r"(?:^|\s)(?://|/\*|\*)\s?(.*)")


@dataclass(frozen=True, slots=True)
class File:
    """File with its texts. ``area``: ``source``, ``tests`` or ``pages``, which a move of files does not change."""

    path: str
    content: str

    @property
    def area(self) -> str:
        """Return the part of the checkout that the file's counts belong to."""
        pure = PurePosixPath(self.path)
        if pure.suffix == ".md":
            return "pages"
        return "tests" if pure.parts[0] in {"tests", "benchmarks"} else "source"

    def texts(self) -> list[Text]:
        """Return the texts that people read. Raises SyntaxError: the file is no Python."""
        suffix = PurePosixPath(self.path).suffix
        if suffix == ".py":
            return python_texts(self.content)
        if suffix == ".md":
            return list(_page(self.content))
        if suffix == ".html":
            return list(_template(self.content))
        if suffix == ".js":
            return [*_comments(self.content, _SLASHES), *_script_strings(self.content)]
        comments = _comments(self.content, _SLASHES if suffix == ".css" else _HASH)
        return [*comments, *_comments(self.content, _ECHOED)] if self.path == "Makefile" else list(comments)


def _page(content: str) -> Iterator[Text]:
    """Yield each line of prose: without code blocks, code spans, link targets and tags."""
    is_code = False
    for number, line in enumerate(content.splitlines(), 1):
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            yield Text(number, _SPAN.sub(" `` ", line))


def _template(content: str) -> Iterator[Text]:
    shown = [(match.start(), match.group(1)) for match in _JINJA_COMMENT.finditer(content)]
    shown += [(match.start(), match.group(1)) for match in _TITLE.finditer(content)]
    bare = _JINJA_COMMENT.sub(_as_blank, content)
    bare = _TAGS.sub(_as_blank, bare)
    for number, line in enumerate(bare.splitlines(), 1):
        yield Text(number, line)
    for start, text in shown:
        yield Text(content.count("\n", 0, start) + 1, text)


def _as_blank(match: re.Match[str]) -> str:
    return " " + "\n" * match.group().count("\n")


def _comments(content: str, mark: re.Pattern[str]) -> Iterator[Text]:
    for number, line in enumerate(content.splitlines(), 1):
        if found := mark.search(line):
            yield Text(number, found.group(1))


def _script_strings(content: str) -> Iterator[Text]:
    for number, line in enumerate(content.splitlines(), 1):
        for found in _JS_STRING.finditer(line):
            if " " in found.group(2).strip():
                yield Text(number, found.group(2))
