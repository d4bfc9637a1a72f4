"""``muster dcgm parse``: what DCGM wrote, in a table or one object a line, and the exit code a script uses."""

import json
from pathlib import Path

import pytest

from muster.cli.framework.exits import Exit
from tests.agents.dcgm.test_diagnosis import FAILED, PASSED, document
from tests.agents.dcgm.test_metrics import sample
from tests.cli.command import Command


def test_a_diagnosis_is_a_row_a_test_and_gpu(muster: Command, tmp_path: Path) -> None:
    file = tmp_path / "diag.json"
    file.write_text(json.dumps(document(PASSED, FAILED)), encoding="utf-8")
    said = muster.run("dcgm", "parse", "diag", str(file))
    assert said.returncode == Exit.FAILED, said.stderr
    assert "row remap failure (isolate)" in said.stdout
    assert "DCGM 4.2.3, driver 570.86.15" in said.stdout
    rows = [json.loads(line) for line in muster.run("dcgm", "parse", "diag", str(file), "--json").stdout.splitlines()]
    assert [(row["test"], row["entity_id"], row["status"]) for row in rows] == [
        ("memory", 0, "pass"),
        ("memory", 1, "fail"),
    ]
    file.write_text(json.dumps(document(PASSED)), encoding="utf-8")
    assert muster.run("dcgm", "parse", "diag", str(file)).returncode == Exit.OK


def test_metrics_are_a_row_a_gpu(muster: Command, tmp_path: Path) -> None:
    file = tmp_path / "metrics.txt"
    file.write_text("\n".join([sample("DCGM_FI_DEV_GPU_TEMP", 61), sample("DCGM_FI_DEV_XID_ERRORS", 31), "x"]))
    (row,) = muster.run("dcgm", "parse", "metrics", str(file), "--json").stdout.splitlines()
    found = json.loads(row)
    assert (found["gpu_uuid"], found["last_xid"], found["values"]) == ("GPU-a", 31, {"temperature_c": 61.0})
    said = muster.run("dcgm", "parse", "metrics", str(file))
    assert (said.returncode, "line 3 is no sample of a GPU" in said.stdout) == (Exit.OK, True), said.stdout


@pytest.mark.parametrize("kind", ["diag", "metrics"])
def test_what_dcgm_did_not_write_is_refused_with_words(muster: Command, tmp_path: Path, kind: str) -> None:
    nowhere = muster.run("dcgm", "parse", kind, str(tmp_path / "nowhere"))
    assert (nowhere.returncode, "cannot be read" in nowhere.stderr) == (Exit.NOT_FOUND, True), nowhere.stderr
    half = tmp_path / "half"
    half.write_bytes(b'{"DCGM Diagnostic": {"test_cat\xff')
    refused = muster.run("dcgm", "parse", kind, str(half))
    assert (refused.returncode, "Traceback" in refused.stderr) == (Exit.INVALID, False), refused.stderr
    assert str(half) in refused.stderr.replace("\n", "")
