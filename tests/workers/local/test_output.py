"""What `muster run` prints of its program's reports."""

import json
from pathlib import Path
from typing import Any

from workers.host.supervisor import files
from workers.local.output import OutputReader

FAULT = {
    "type": "replica_fault",
    "step": 12,
    "since": 9,
    "verdict": "corruption",
    "ranks": [1],
    "reason": "copies differ",
}
BACK = {
    "type": "rolled_back",
    "from_step": 12,
    "step": 8,
    "generation": "step-00000008/gen-1",
    "cause": "replica_fault",
}
RERUN = {
    "type": "rerun",
    "step": 12,
    "from_step": 8,
    "end_step": 12,
    "first_bad": 10,
    "place": "in_place",
    "is_again": False,
    "num_ranks": 2,
    "reason": "re-run of steps 9 to 12: it was transient",
}


def test_faults_of_values_spikes_and_rollbacks_are_printed(tmp_path: Path) -> None:
    printed: list[str] = []
    reports: list[dict[str, Any]] = [
        {"type": "spike", "step": 9, "what": "loss", "value": 50.0, "usual": 2.125},
        {"type": "spike", "step": 10, "what": "loss", "value": 51.0, "usual": 2.125, "length": 2, "is_shown": False},
        {"type": "value_fault", "step": 10, "ranks": [0], "reason": "diverged at step 10: the loss is nan on rank 0"},
        {**BACK, "skipped_from": 96, "skipped_to": 108},
        {**BACK, "skipped": "the samples of stream train"},
        FAULT,
        BACK,
        RERUN,
        {"type": "rolled_back", "from_step": "many"},
    ]
    lines = [json.dumps({"at_ms": 1, "rank": 0, "message": report}) for report in reports]
    (tmp_path / files.TRAIN).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / files.LOGS).mkdir()
    OutputReader(tmp_path, printed.append, lambda *_: None, limit_bytes=1 << 20).listen()
    assert printed == [
        "spike: loss is 50 at step 9, and was 2.125 before",
        "fault of values: diverged at step 10: the loss is nan on rank 0",
        "rolled back from step 12, to step-00000008/gen-1; samples 96 to 107 are skipped",
        "rolled back from step 12, to step-00000008/gen-1; the samples of stream train are skipped",
        "fault of values: copies differ",
        "rolled back from step 12, to step-00000008/gen-1",
        "fault of values: re-run of steps 9 to 12: it was transient",
    ]
