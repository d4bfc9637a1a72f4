"""A reader who types a document's blocks one after the other at one shell."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.docs.blocks import Block, commands_of, shows
from tests.docs.places import put_in

PATIENCE_S: Final = 900.0
PAUSE_S: Final = 1.0


class DocumentError(AssertionError):
    """What was typed did not do what the document says."""


@dataclass(slots=True)
class Reader:
    """``folder``: where the shell is; ``places``: what the document names → what it is here.

    Variables and the folder that a block leaves are there for the next. ``path``: folders that are searched first.
    """

    folder: Path
    places: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    path: Sequence[Path] = ()
    patience_s: float = PATIENCE_S
    pause_s: float = PAUSE_S

    def read(self, blocks: Sequence[Block]) -> None:
        """Raises DocumentError at the first block that does not hold."""
        for block in blocks:
            if block.is_run:
                self.type(block)

    def type(self, block: Block) -> None:
        if block.is_waited_for:
            self._until(lambda: self._type_once(block))
        else:
            self._type_once(block)

    def reported_by(self, text: str) -> str:
        """What ``text`` says, however it ends."""
        return self._typed(text).stdout

    def _type_once(self, block: Block) -> None:
        if block.language == "console":
            self._type_commands(block)
        else:
            self._require(block, block.text)

    def _type_commands(self, block: Block) -> None:
        for typed in commands_of(block):
            said = self._require(block, typed.command)
            shown = tuple(put_in(line, self.places) for line in typed.shown)
            if not shows(said, shown):
                raise DocumentError(f"{block.where}: {typed.command}\nshown:\n" + "\n".join(shown) + f"\nsaid:\n{said}")

    def _until(self, holds: Callable[[], None]) -> None:
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return holds()
            except DocumentError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(self.pause_s)

    def _require(self, block: Block, text: str) -> str:
        ended = self._typed(text)
        if ended.returncode != 0:
            raise DocumentError(f"{block.where}: exit code {ended.returncode} of\n{text}\nwith output:\n{ended.stdout}")
        return ended.stdout

    def _typed(self, text: str) -> subprocess.CompletedProcess[str]:
        """By bash, stopping at the first command that fails; what goes to either stream, in order."""
        memory = self.folder / ".shell"
        # -a: a reader's own shell keeps each variable, exported or not.
        script = f"set -aeuo pipefail\n[ ! -e {memory} ] || . {memory}\n{put_in(text, self.places)}\n"
        remember = f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {memory}\n"
        path = os.pathsep.join([*map(str, self.path), os.defpath])
        return subprocess.run(
            ["/bin/bash", "-c", script + remember],
            cwd=self.folder,
            env={"PATH": path, "HOME": str(self.folder), "COLUMNS": "200", **self.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=self.patience_s,
        )
