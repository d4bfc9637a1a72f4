"""A Dockerfile's instructions, so far as they can be read without a builder."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

_HEAD: Final = re.compile(r"^(?P<word>[A-Z]+)\s+(?P<rest>.+)$", re.DOTALL)


@dataclass(slots=True)
class Stage:
    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def of(self, word: str) -> list[str]:
        return [rest for found, rest in self.instructions if found == word]

    @property
    def copies(self) -> list["Copy"]:
        return [_copy(rest, self.workdir) for rest in self.of("COPY")]

    @property
    def workdir(self) -> str:
        return (self.of("WORKDIR") or ["/"])[-1]


@dataclass(frozen=True, slots=True)
class Copy:
    """``stage``: from which one, None: from the build context. ``target`` is absolute; a folder's ends with /."""

    sources: tuple[str, ...]
    target: str
    stage: str | None

    def placed(self, root: Path, context: Path) -> list[tuple[Path, Path]]:
        """What of ``context`` lands where below ``root``."""
        pairs = []
        for source in self.sources:
            found = context / source
            into_folder = self.target.endswith("/") and found.is_file()
            target = PurePosixPath(self.target) / found.name if into_folder else PurePosixPath(self.target)
            pairs.append((found, root / target.relative_to("/")))
        return pairs


def read_dockerfile(path: Path) -> list[Stage]:
    """Raises ValueError for a line that is no instruction."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    stages: list[Stage] = []
    for text in re.split(r"(?<!\\)\n", "\n".join(lines)):
        joined = re.sub(r"\s*\\\n\s*", " ", text).strip()
        if not joined:
            continue
        match = _HEAD.match(joined)
        if match is None:
            raise ValueError(f"{path.name}: {joined!r} is no instruction")
        if match["word"] == "FROM":
            base, _, name = match["rest"].partition(" AS ")
            stages.append(Stage(base, name))
        else:
            stages[-1].instructions.append((match["word"], match["rest"]))
    return stages


def _copy(rest: str, workdir: str) -> Copy:
    words = shlex.split(rest)
    stage = next((word.removeprefix("--from=") for word in words if word.startswith("--from=")), None)
    *sources, target = (word for word in words if not word.startswith("--"))
    is_folder = target.endswith("/") or len(sources) > 1
    absolute = str(PurePosixPath(workdir) / target)
    return Copy(tuple(sources), f"{absolute}/" if is_folder else absolute, stage)
