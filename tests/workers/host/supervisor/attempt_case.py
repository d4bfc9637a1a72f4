"""Real attempts with real processes: an order on disk, a supervisor started the launcher's way, its files read back."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.host import supervisor
from workers.host.supervisor import files
from workers.host.supervisor.files import boottime_ns
from workers.host.supervisor.lock import is_locked
from workers.host.supervisor.proof.processes import attempt_processes

NODE_ID = "node_test"
SECOND_NS = 1_000_000_000


def until(condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for: {what}"
        time.sleep(0.005)


@dataclass
class Attempt:
    folder: Path
    rendezvous_port: int

    def order(self, **fields: Any) -> None:
        document: dict[str, Any] = {
            "schema": 1,
            "attempt_id": self.folder.name,
            "fence": 7,
            "job_id": "job_test",
            "boot_id": "boot-test",
            "node_id": NODE_ID,
            "node_rank": 0,
            "num_nodes": 1,
            "ranks_per_node": 1,
            "gpus": ["GPU-1", "GPU-2"],
            "launcher": "command",
            "script": None,
            "args": [],
            "command": None,
            "python": sys.executable,
            "working_dir": str(self.folder),
            "env": {},
            "rendezvous": {"host": "127.0.0.1", "port": self.rendezvous_port},
            "wall_time_s": None,
            "grace_s": 0.3,
            "log_limit_bytes_per_stream": 1 << 20,
            "lease": {"boottime_ns": boottime_ns() + 900 * SECOND_NS},
        }
        self.write("order.json", {**document, **fields})

    def start(self, program: str, **fields: Any) -> None:
        """A bare command: this Python source."""
        self.order(command=[sys.executable, "-u", "-c", program], **fields)
        supervisor.spawn_supervisor(self.folder)

    def write(self, name: str, document: dict[str, Any]) -> None:
        draft = self.folder / f".{name}.draft"
        draft.write_text(json.dumps(document), encoding="utf-8")
        draft.chmod(0o600)
        draft.replace(self.folder / name)

    def stop(self, reason: str, after_s: float, **fields: Any) -> None:
        kill_at_ns = boottime_ns() + round(after_s * SECOND_NS)
        self.write("stop.json", {"reason": reason, "grace_until_boottime_ns": kill_at_ns, "terminate": True, **fields})
        supervisor.wake(self.folder)

    def read(self, name: str) -> dict[str, Any]:
        document = json.loads((self.folder / name).read_text(encoding="utf-8"))
        assert isinstance(document, dict)
        return document

    def log(self, stream: str = "0") -> str:
        path = self.folder / "logs" / f"{stream}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def wait_for_log(self, words: str, stream: str = "0", timeout_s: float = 90.0) -> None:
        until(lambda: words in self.log(stream), f"{words!r} in the log of {stream}", timeout_s)

    def wait_for(self, name: str, timeout_s: float = 90.0) -> dict[str, Any]:
        until((self.folder / name).exists, name, timeout_s)
        return self.read(name)

    def ended(self, timeout_s: float = 90.0) -> dict[str, Any]:
        """The exit record, once the proof is written too and the supervisor has gone."""
        self.wait_for("clean.json", timeout_s)
        until(lambda: not is_locked(self.folder / files.LOCK), "the supervisor's end", timeout_s)
        return self.read("exit.json")

    def supervisor_pid(self) -> int:
        return int(self.wait_for("supervisor.json")["pid"])

    def processes(self) -> set[int]:
        """Return the attempt's processes except its supervisor."""
        return attempt_processes((f"MUSTER_ATTEMPT_ID={self.folder.name}", f"MUSTER_NODE_ID={NODE_ID}"), None)

    def supervise_again(self) -> subprocess.CompletedProcess[str]:
        """Another supervisor of the same attempt, in the foreground, for its exit code."""
        entry = Path(supervisor.__file__).with_name("entry.py")
        command = [sys.executable, "-I", "-S", str(entry), str(self.folder), "--foreground"]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)  # our own
