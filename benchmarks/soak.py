"""A soak of a fresh stack: how much of the time was training that counted, with a fault each minute."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Figure
from muster.embedded.own_processes import processes_of
from muster.ports import free_port

MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))
SEED = int(os.environ.get("SOAK_SEED", "1"))


def measure() -> list[Figure]:
    """Raises RuntimeError where something other than the ratio did not hold: then there is nothing to measure."""
    with tempfile.TemporaryDirectory(prefix="muster-soak-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        state, temporary = folder / "state", folder / "tmp"
        temporary.mkdir()
        temporary.chmod(0o1777)
        command = [sys.executable, "-m", "muster", "up", "--exit", "--soak", str(MINUTES), "--seed", str(SEED)]
        command += ["--state-dir", str(state), "--port", str(free_port())]
        environment = {**os.environ, "TMPDIR": str(temporary)}
        answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603  # our own module
        if not (state / "soak.json").exists():
            message = f"the soak did not hold:\n{answer.stdout[-4000:]}"
            raise RuntimeError(message)
        told = json.loads((state / "soak.json").read_text(encoding="utf-8"))
        left = {kind: len(which) for kind, which in told["leftovers"].items()}
        left["of the stack, processes"] = len(processes_of(state))
        left["of the stack, temporary files"] = len(list(temporary.iterdir()))
    peers = {f"{one['name']} {one['unit']}": one["value"] for one in told["measures"] if one["bar"] is None}
    return [
        Figure("soak: effective training time", told["ettr"], "ratio", told["ettr_bar"], "higher", peers),
        Figure(
            "soak: left behind", sum(left.values()), "things", 0, peers={kind: float(n) for kind, n in left.items()}
        ),
    ]
