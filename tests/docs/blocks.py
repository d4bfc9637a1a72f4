"""The blocks of a document that a reader types, and what the document itself says of each.

```sh run                      a script, typed as it is
```console run                 lines after "$ ", each with the output that is shown; … stands for whatever there is
```sh run wait                 the same, again and again until it holds; of what only looks
```sh skip="needs a GPU"       not typed here, and why
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TYPED: Final = ("sh", "console")
_BLOCK: Final = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_SKIP: Final = re.compile(r'skip="(?P<why>[^"]+)"')


@dataclass(frozen=True, slots=True)
class Block:
    """``skipped``: why it is not typed; None where it is, or where the document does not say."""

    document: str
    line: int
    language: str
    words: tuple[str, ...]
    skipped: str | None
    text: str

    @property
    def is_run(self) -> bool:
        return "run" in self.words

    @property
    def is_waited_for(self) -> bool:
        return "wait" in self.words

    @property
    def where(self) -> str:
        return f"{self.document}:{self.line}"


@dataclass(frozen=True, slots=True)
class Typed:
    """One command of a console block, and the lines that are shown below it."""

    command: str
    shown: tuple[str, ...]


def blocks_of(path: Path) -> list[Block]:
    """Every block in ``sh`` or ``console``, in order."""
    content = path.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(content):
        language, _, rest = match["info"].strip().partition(" ")
        if language in TYPED:
            skip = _SKIP.search(rest)
            line = content.count("\n", 0, match.start()) + 1
            words = tuple(_SKIP.sub("", rest).split())
            found.append(Block(path.name, line, language, words, skip["why"] if skip else None, match["text"]))
    return found


def undecided(blocks: list[Block]) -> list[str]:
    """Where a block says neither that it is run nor why it is not."""
    return [block.where for block in blocks if block.is_run == (block.skipped is not None)]


def commands_of(block: Block) -> list[Typed]:
    """Of a console block. Raises ValueError where it does not begin with a command."""
    commands: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif not commands:
            raise ValueError(f'{block.where}: a console block begins with "$ ", not with {line!r}')
        elif commands[-1][0].endswith("\\") and not commands[-1][1]:
            commands[-1] = (f"{commands[-1][0]}\n{line}", [])
        else:
            commands[-1][1].append(line)
    return [Typed(command, tuple(shown)) for command, shown in commands]


def shows(reported: str, shown: tuple[str, ...]) -> bool:
    """Whether ``reported`` reads as ``shown``: … alone stands for any lines, within a line for any words."""
    parts = [r"(?:[^\n]*\n)*?" if line.strip() == "…" else rf"{_line(line)}[ ]*\n" for line in shown]
    text = "".join(f"{line.rstrip()}\n" for line in reported.splitlines())
    return re.fullmatch("".join(parts), text) is not None


def _line(line: str) -> str:
    return "[^\n]*".join(re.escape(part) for part in line.rstrip().split("…"))
