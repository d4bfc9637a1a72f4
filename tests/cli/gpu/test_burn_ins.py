"""``muster burnin`` and ``muster agent burn-in``, as real processes."""

import json
from pathlib import Path
from typing import Any

from agents.probes.faults import Fault, write_fault
from muster.cli.framework.exits import Exit
from tests.cli.command import Command
from tests.recorded_server import Answer, Requested, serving

GPU = "GPU-51300000-0000-4000-8000-000000000001"
ITEM: dict[str, Any] = {
    "id": "bi_1",
    "gpu_uuid": GPU,
    "state": "JUDGED",
    "outcome": "failed",
    "reasons": ["bf16 rows 1/8: sum 41, exactly 42"],
    "open_bands": ["fp32 2^0"],
    "num_peers": 1,
    "model": "NVIDIA H100",
    "driver": "580",
    "library": "torch",
    "is_simulated": True,
    "reason": "weekly",
    "ordered_by": "operator:ann",
    "ordered_at": "2026-01-01T00:00:00Z",
    "tries": 2,
    "last_fault": "it did not end within 900 s",
    "figures": {
        "partial_sums": [{"name": "bf16 rows 1/8", "golden": 42, "measured": 41}],
        "bands": {"fp32 2^0": "a"},
        "counter_deltas": {"nvlink_replays": 3.0, "pcie_replays": None},
        "rates": {"gemm_bf16_tflops": 700.0},
        "memory_bytes": 1 << 30,
        "took_s": 1.25,
    },
}


def answered(requested: Requested, _number: int) -> Answer:
    if requested.method == "POST":
        return Answer(201, ITEM)
    if requested.path.startswith("/v1/gpus"):
        return Answer(200, {"items": [{"uuid": GPU}], "next_cursor": None})
    return Answer(200, ITEM if requested.path.endswith("bi_1") else {"items": [ITEM], "next_cursor": None})


def test_list_show_and_run_state_what_a_person_requests(muster: Command) -> None:
    with serving(answered) as server:
        listed = muster.run("burnin", "list", "--gpu", GPU, url=server.url)
        shown = muster.run("burnin", "show", "bi_1", url=server.url)
        ordered = muster.run("burnin", "run", "0001", "--reason", "weekly", url=server.url)
    assert (listed.returncode, shown.returncode, ordered.returncode) == (0, 0, 0)
    assert "FAILED" in listed.stdout
    assert f"/v1/burn-ins?gpu={GPU}&limit=100" in [asked.path for asked in server.requested]
    assert server.requested[-1].path == f"/v1/gpus/{GPU}/burn-in"
    for words in ("0 of 1", "nvlink_replays +3", "1 GiB", "sum 41, exactly 42", "(simulated)", "no majority yet"):
        assert words in shown.stdout
    assert "bi_1 is ordered" in ordered.stdout
    assert json.loads(server.requested[-1].body) == {"reason": "weekly"}


def test_a_host_burns_in_its_gpus_by_itself_and_names_the_one_that_computes_wrong(
    muster: Command, tmp_path: Path
) -> None:
    faults = tmp_path / "faults.json"
    write_fault(faults, Fault(gpu=GPU, kind="wrong_result"))
    words = ("agent", "burn-in", "--simulated", "h100", "--gpus", "3", "--faults", str(faults), "--json")
    answer = muster.run(*words)
    assert answer.returncode == Exit.FAILED, answer.stderr
    outcomes = {item["gpu_uuid"]: item["outcome"] for item in json.loads(answer.stdout)}
    assert [uuid for uuid, outcome in outcomes.items() if outcome != "passed"] == [GPU]
    assert all(item["figures"]["is_simulated"] for item in json.loads(answer.stdout))
