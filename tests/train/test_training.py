"""Real ranks under real torchrun: what was interrupted goes on at the exact next step, bit for bit."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: nothing is trained"),
]
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_transformer.py"


class Training:
    """One job's folder, and attempts at it under growing fences."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.fence = 0
        self.said: list[dict[str, Any]] = []

    def start(self, *arguments: str, ranks: int = 2, **variables: str) -> subprocess.Popen[str]:
        self.fence += 1
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "MUSTER_CHECKPOINT_DIR": str(self.checkpoints),
            "MUSTER_FENCE": str(self.fence),
            "MUSTER_ATTEMPT_ID": f"att_{self.fence}",
            **variables,
        }
        program = [str(SCRIPT), *arguments]
        if ranks > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=0"]
            program = [*torchrun, *program]
        return subprocess.Popen(
            [sys.executable, *program], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *arguments: str, ranks: int = 2, **variables: str) -> tuple[int, dict[int, str], str]:
        """Exit code, loss of each step as printed, and what went to standard error."""
        process = self.start(*arguments, ranks=ranks, **variables)
        output, errors = process.communicate(timeout=120)
        return process.returncode, losses_in(output), errors

    def generations(self) -> list[str]:
        found = self.checkpoints.glob("step-*/*")
        return sorted(f"{path.parent.name}/{path.name}" for path in found)


def losses_in(output: str) -> dict[int, str]:
    lines = (line.split() for line in output.splitlines() if line.startswith("step "))
    return {int(words[1]): words[3] for words in lines}


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path / "job")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The losses of 30 steps that nothing interrupted, two ranks."""
    training = Training(tmp_path_factory.mktemp("undisturbed"))
    code, losses, errors = training.run("--steps", "30", "--checkpoint-every", "10")
    assert code == 0, errors
    assert len(losses) == 30
    assert float(losses[30]) < float(losses[1]) - 0.5, "it learns"
    return losses


def test_killed_in_the_middle_of_a_save_it_goes_on_bit_for_bit(training: Training, undisturbed: dict[int, str]) -> None:
    arguments = ("--steps", "30", "--checkpoint-every", "10")
    code, losses, _ = training.run(*arguments, MUSTER_TRAIN_FAILPOINT="save.after_commit")
    assert code != 0
    assert losses == {step: undisturbed[step] for step in range(1, 11)}
    code, losses, _ = training.run(*arguments, MUSTER_TRAIN_FAILPOINT="save.before_commit")
    assert code != 0
    assert losses == {step: undisturbed[step] for step in range(11, 21)}
    assert "step-00000010/gen-1" in training.generations()
    assert "step-00000020/gen-2" not in training.generations(), "it died before the commit"
    code, losses, errors = training.run(*arguments)
    assert code == 0, errors
    assert losses == {step: undisturbed[step] for step in range(11, 31)}


def test_a_signal_to_one_rank_stops_all_at_one_step_with_a_checkpoint(
    training: Training, undisturbed: dict[int, str]
) -> None:
    arguments = ("--steps", "30", "--checkpoint-every", "0")
    process = training.start(*arguments, "--step-sleep", "0.1")
    assert process.stdout is not None
    head = "".join(process.stdout.readline() for _ in range(3))
    # The last child of torchrun is rank 1: the word has to spread from there.
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    os.kill(int(children[-1]), signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    before = losses_in(head + output)
    stopped_at = max(before)
    assert stopped_at < 30
    assert f"step-{stopped_at:08d}/gen-1" in training.generations(), errors
    code, after, errors = training.run(*arguments)
    assert code == 0, errors
    assert {**before, **after} == undisturbed
    assert min(after) == stopped_at + 1


def test_damage_is_refused_said_and_the_generation_before_is_used(training: Training) -> None:
    """One rank: the same code, without torchrun's start."""
    arguments = ("--steps", "6", "--checkpoint-every", "2")
    code, whole, errors = training.run(*arguments, ranks=1)
    assert code == 0, errors
    newest, second = (training.checkpoints / name for name in ("step-00000006/gen-1", "step-00000004/gen-1"))
    flipped = bytearray((newest / "rank-00000.pt").read_bytes())
    flipped[len(flipped) // 2] ^= 4
    (newest / "rank-00000.pt").write_bytes(flipped)
    os.truncate(second / "rank-00000.pt", 1000)
    with Listening(training.folder / "s") as supervisor:
        code, again, errors = training.run(*arguments, ranks=1, MUSTER_TRAIN_SOCKET=str(supervisor.path))
    assert code == 0, errors
    assert again == {step: whole[step] for step in (3, 4, 5, 6)}
    rejected = [message for message in supervisor.said if message["type"] == "checkpoint_rejected"]
    assert [(item["generation"], item["why"].split(" ", 1)[1]) for item in rejected] == [
        ("step-00000006/gen-1", "differs from what was saved"),
        ("step-00000004/gen-1", f"holds 1000 bytes instead of {len(flipped)}"),
    ]
    kinds = [message["type"] for message in supervisor.said]
    assert kinds[0] == "hello"
    assert kinds[-1] == "outcome"
    assert {"type": "resumed", "step": 2, "generation": "step-00000002/gen-1"} in supervisor.said
    verified = [item["generation"] for item in supervisor.said if item.get("status") == "verified"]
    assert verified == ["step-00000004/gen-2", "step-00000006/gen-2"]


def test_what_the_control_plane_forbids_is_not_resumed_from(training: Training) -> None:
    arguments = ("--steps", "4", "--checkpoint-every", "2")
    _, whole, _ = training.run(*arguments, ranks=1)
    resume = {"generation": "step-00000002/gen-1", "refuse": ["step-00000004/gen-1"]}
    code, again, errors = training.run(*arguments, ranks=1, MUSTER_RESUME=json.dumps(resume))
    assert code == 0, errors
    assert again == {step: whole[step] for step in (3, 4)}


def test_an_attempt_that_was_overtaken_writes_nothing_and_says_never_again(training: Training) -> None:
    training.checkpoints.mkdir(parents=True)
    (training.checkpoints / "FENCE").write_text("99", encoding="ascii")
    code, losses, _ = training.run("--steps", "2", ranks=1)
    assert (code, losses) == (93, {})
    assert training.generations() == []


@pytest.mark.parametrize(("notice_s", "code"), [(0.0, 76), (60.0, 75)])
def test_a_notice_too_short_for_a_save_ends_without_one(training: Training, notice_s: float, code: int) -> None:
    with Listening(training.folder / "s") as supervisor:
        arguments = ("--steps", "500", "--checkpoint-every", "0", "--step-sleep", "0.05")
        process = training.start(*arguments, ranks=1, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        supervisor.wait_for("step")
        deadline_ms = time.time_ns() // 1_000_000 + round(notice_s * 1000)
        supervisor.tell({"type": "stop", "reason": "reclaim", "deadline_unix_ms": deadline_ms})
        process.communicate(timeout=60)
    assert process.returncode == code
    assert bool(training.generations()) == (notice_s > 0)
    assert supervisor.said[-1]["exit"] == ("stopped_with_checkpoint" if notice_s > 0 else "stopped_without")


class Listening:
    """The supervisor's end for one rank."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.said: list[dict[str, Any]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._rank: socket.socket | None = None
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
        self._listener.close()

    def _listen(self) -> None:
        self._rank, _ = self._listener.accept()
        with self._rank, self._rank.makefile("rb") as lines:
            for line in lines:
                self.said.append(json.loads(line))

    def tell(self, message: dict[str, Any]) -> None:
        assert self._rank is not None
        self._rank.sendall(json.dumps(message).encode() + b"\n")

    def wait_for(self, kind: str) -> None:
        deadline = time.monotonic() + 60
        while not any(message["type"] == kind for message in tuple(self.said)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
