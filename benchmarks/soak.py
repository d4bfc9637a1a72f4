"""A soak of a fresh stack: how much of the time was training that counted, with a fault each minute."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import small_stack
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from local.own_processes import processes_of
from muster.ports import free_port

SEED: Final = int(os.environ.get("SOAK_SEED", "1"))


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``minutes`` None: a few steps on the smallest stack, without a fault."""

    minutes: float | None


SIZES: Final = Sizes(full=Size(float(os.environ.get("SOAK_MINUTES", "30"))), smallest=Size(None))


def measure(size: Size) -> Groups:
    """Measure. Raises RuntimeError if something other than the ratio did not hold: then there is nothing to measure."""
    with tempfile.TemporaryDirectory(prefix="muster-soak-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        state, temporary = folder / "state", folder / "tmp"
        temporary.mkdir()
        temporary.chmod(0o1777)
        environment = {**os.environ, "TMPDIR": str(temporary)}
        answer = subprocess.run(_command(size, state), env=environment, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603  # our own module
        if not (state / "soak.json").exists():
            message = f"the soak did not hold:\n{answer.stdout[-4000:]}"
            raise RuntimeError(message)
        found = json.loads((state / "soak.json").read_text(encoding="utf-8"))
        left = {kind: len(which) for kind, which in found["leftovers"].items()}
        left["of the stack, processes"] = len(processes_of(state))
        left["of the stack, temporary files"] = len(list(temporary.iterdir()))
    peers = {f"{one['name']} {one['unit']}": one["value"] for one in found["measures"] if one["bar"] is None}
    things = {kind: float(number) for kind, number in left.items()}
    ettr, bar = found["ettr"], found["ettr_bar"]
    yield [
        Figure("soak: effective training time", ettr, "ratio", bar, "higher", peers, basis=Basis.RATIO),
        Figure("soak: left behind", float(sum(left.values())), "things", 0.0, peers=things, basis=Basis.COUNT),
    ]


def _command(size: Size, state: Path) -> list[str]:
    if size.minutes is None:
        return small_stack.command_of("soak", state, free_port())
    command = [sys.executable, "-m", "muster", "up", "--exit", "--soak", str(size.minutes), "--seed", str(SEED)]
    return [*command, "--state-dir", str(state), "--port", str(free_port())]
