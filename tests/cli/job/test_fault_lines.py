"""Lines about faults as ``muster job explain`` shows them, and false alarms by rule."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.cli.job.fault_lines import PARTS_SHOWN, fault_lines, texts_of
from muster.client.transport import Problem
from tests.cli.command import Command
from tests.recorded_server import Answer, serving

LINE = {
    "role": "cascade", "is_root": False, "node": "node-b", "rank": 4, "pattern": "x", "text": "lost its peer",
    "count": 8, "peer": "", "port": "", "gpu": None,
}  # fmt: skip
FOUND: dict[str, Any] = {
    "attempt_id": "att_1", "attempt": 2, "sentence": "Rank 3 on node-a printed: error 12.",
    "parts": [
        {**LINE, "role": "root", "is_root": True, "node": "node-a", "rank": 3, "text": "error 12", "count": 1},
        {**LINE, "role": "measured", "node": "node-a", "rank": None, "text": "port mlx5_4/1 is down", "count": 1},
        *([LINE] * 9),
    ],
    "transports": [{"node": f"node-{name}", "transport": "socket", "cards": ["eth0"]} for name in "abcde"],
    "warning": "NCCL uses sockets",
    "ports": [{"node": "node-a", "port": "mlx5_0/1", "counter": "packet_seq_err", "rise": 4.0, "num_users": 2}],
}  # fmt: skip


def test_the_root_is_first_and_few_of_many_lines_are_shown() -> None:
    lines = list(texts_of(FOUND))
    assert lines[:4] == [
        "lines about faults in attempt 2: Rank 3 on node-a printed: error 12.",
        "  root     rank 3 on node-a: error 12",
        "  measured node-a: port mlx5_4/1 is down",
        "  cascade  rank 4 on node-b: lost its peer (8 times)",
    ]
    assert f"  and {11 - PARTS_SHOWN} more" in lines
    assert lines[-3:] == [
        "NCCL uses socket (eth0) between hosts, on node-a, node-b, node-c and 2 others",
        "warning: NCCL uses sockets",
        "port mlx5_0/1 of node-a: packet_seq_err grew by 4 meanwhile; 2 attempts used it",
    ]


@pytest.mark.parametrize("status", [403, 404])
def test_a_server_of_the_release_before_and_a_caller_without_the_right_show_none(status: int) -> None:
    def refused(_job_id: str) -> None:
        raise Problem(status, "x", "y")

    client: Any = SimpleNamespace(fault_lines=refused)
    assert fault_lines(client, "job_1") is None
    nothing = {**FOUND, "parts": [], "transports": [], "ports": []}
    empty: Any = SimpleNamespace(fault_lines=lambda _job_id: nothing)
    assert fault_lines(empty, "job_1") is None


def answers(requested: Any, _number: int) -> Answer:
    """Answer as the server does of a running job with lines about faults, and of one whose verdicts were dismissed."""
    if requested.path.startswith("/v1/verdicts/rules"):
        proposal = "2 verdicts of hang.step on this job were false alarms, so it only notifies; raise `x`"
        learnt = [{"job_id": "job_1", "kind": "hang", "rule": "hang.step", "num_dismissed": 2, "proposal": proposal}]
        count = {"kind": "hang", "cause": "storage", "rule": "hang.step", "num_verdicts": 5, "num_dismissed": 2}
        return Answer(200, {"counts": [count], "learnt": learnt})
    if requested.path.startswith("/v1/verdicts"):
        return Answer(200, {"items": [], "next_cursor": None})
    if requested.path.endswith("/fault-lines"):
        return Answer(200, FOUND)
    if requested.path.endswith("/environments"):
        return Answer(200, {"items": []})
    status = 404 if requested.path.endswith("/findings") else 409
    problem = {"type": "about:blank", "title": "x", "status": status, "code": "conflict", "detail": "it does not wait"}
    return Answer(status, problem)


def test_a_running_job_is_explained_by_its_lines_and_rules_by_their_false_alarms(tmp_path: Path) -> None:
    with serving(answers) as server:
        explained = Command(tmp_path).run("job", "explain", "job_1", url=server.url)
        document = Command(tmp_path).run("job", "explain", "job_1", "--json", url=server.url)
        rules = Command(tmp_path).run("verdict", "rules", "--wide", url=server.url)
    assert explained.stdout.startswith("job_1: lines about faults in attempt 2: Rank 3 on node-a"), explained.stderr
    assert json.loads(document.stdout)["fault_lines"]["warning"] == "NCCL uses sockets"
    assert "hang.step  storage  5         2" in rules.stdout, rules.stdout + rules.stderr
    assert "job_1: 2 verdicts of hang.step on this job were false alarms" in rules.stdout
