"""What ``muster job explain`` and ``muster job logs --build`` show of a job's environment."""

from pathlib import Path
from typing import Any

from tests.cli.command import Command
from tests.recorded_server import Answer, serving

BUILD: dict[str, Any] = {
    "key": "a1" * 32, "state": "failed", "interpreter": "cpython-3.11", "platform": "linux_x86_64", "digest": None,
    "num_bytes": None, "node_name": "alpha", "changed_at": "2026-11-28T16:00:00Z", "line": 3,
    "words": "line 3 of the lock: torch==9.9 has no wheel", "log": "resolving\nerror: \x1b[31mno wheel\n",
}  # fmt: skip
BUILT = {**BUILD, "state": "built", "num_bytes": 212_000_000, "words": "", "line": None, "log": ""}
STATED = "environment a1a1a1a1a1a1 for cpython-3.11 failed on alpha: line 3 of the lock: torch==9.9 has no wheel"
JOB = {"id": "job_1", "state": "HELD", "state_reason": "user_error: alpha checked it: no wheel; release the job"}


def answers(requested: Any, _number: int) -> Answer:
    """Answer as the server does of a job that is held."""
    if requested.path.endswith("/environments"):
        return Answer(200, {"items": [BUILD, BUILT]})
    if requested.path.startswith("/v1/verdicts"):
        return Answer(200, {"items": [], "next_cursor": None})
    if requested.path == "/v1/jobs/job_1":
        return Answer(200, JOB)
    status = 404 if requested.path.endswith(("/fault-lines", "/findings")) else 409
    problem = {"type": "about:blank", "title": "x", "status": status, "code": "conflict", "detail": "it does not wait"}
    return Answer(status, problem)


def test_a_job_on_hold_is_explained_by_the_line_that_failed(tmp_path: Path) -> None:
    with serving(answers) as server:
        explained = Command(tmp_path).run("job", "explain", "job_1", url=server.url)
    text = " ".join(explained.stdout.split())
    assert text.startswith("job_1: HELD: user_error: alpha checked it: no wheel; release the job"), explained.stderr
    assert STATED in text
    assert "environment a1a1a1a1a1a1 for cpython-3.11 is built on alpha, 212 MB" in text
    assert "muster job logs --build job_1" in text


def test_the_log_of_a_build_cannot_control_the_terminal(tmp_path: Path) -> None:
    with serving(answers) as server:
        shown = Command(tmp_path).run("job", "logs", "--build", "job_1", url=server.url)
        raw = Command(tmp_path).run("job", "logs", "--build", "--raw", "job_1", url=server.url)
    assert shown.stdout == "resolving\nerror: no wheel\n", shown.stderr
    assert STATED in " ".join(shown.stderr.split())
    assert "\x1b[31m" in raw.stdout
