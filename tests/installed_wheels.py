"""Environments in which our wheels are installed by pip, next to linked copies of the packages that they require."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

OURS: Final = Path(sysconfig.get_path("purelib"))


@dataclass(frozen=True, slots=True)
class Place:
    """A virtual environment. Of our own packages it has only what ``link`` was asked for: no server's."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "Place":
        venv.create(folder, with_pip=False)
        return cls(folder)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def libraries(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    def pip(self, *words: str | Path) -> str:
        """Run pip for this environment, without an index, and return its output."""
        offline = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1"}
        command = [sys.executable, "-m", "pip", "--isolated", "--python", str(self.python), *map(str, words)]
        done = subprocess.run(
            command, env={**os.environ, **offline}, capture_output=True, text=True, check=False, timeout=180
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self, *wheels: Path) -> None:
        self.pip("install", "--no-index", "--no-deps", "--quiet", *wheels)

    def link(self, *requirements: str) -> None:
        """Link the distributions that these requirements name, with all that they require, from our environment."""
        for name in sorted(set(_closure(requirements))):
            for top in {path.parts[0] for path in metadata.distribution(name).files or ()}:
                target = self.libraries / top
                if top not in {"..", "__pycache__"} and (OURS / top).exists() and not target.exists():
                    target.symlink_to(OURS / top)

    def run(self, *words: str, home: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment, such as ``muster``."""
        return subprocess.run(
            [str(self.folder / "bin" / words[0]), *words[1:]],
            cwd=home or self.folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(home or self.folder), "COLUMNS": "100", **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


def _closure(requirements: tuple[str, ...]) -> Iterator[str]:
    waiting = [Requirement(each) for each in requirements]
    seen: set[str] = set()
    while waiting:
        one = waiting.pop()
        if one.name in seen or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        seen.add(one.name)
        yield one.name
        waiting += [Requirement(each) for each in metadata.requires(one.name) or ()]
