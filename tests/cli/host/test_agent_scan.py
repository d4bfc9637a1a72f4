"""``muster agent scan``, as a real process on a simulated GPU."""

import json
import subprocess
from pathlib import Path

import pytest

from agents.probes.faults import Fault, write_fault
from agents.probes.simulated import simulated_uuids
from muster.cli.framework.exits import Exit
from tests.cli.command import Command


def test_a_policy_of_ones_own_decides_and_a_bad_one_is_reported_all_its_faults(muster: Command, tmp_path: Path) -> None:
    def scan(*words: str) -> subprocess.CompletedProcess[str]:
        return muster.run("agent", "scan", "--simulated", "h100", "--gpus", "1", "--listen", "0", *words)

    planted, good, bad = tmp_path / "faults.json", tmp_path / "good.yaml", tmp_path / "bad.yaml"
    write_fault(planted, Fault(gpu=simulated_uuids(1)[0], kind="heat", temperature_c=88))
    good.write_text("health: {detectors: {temperature: {mode: 'off'}, thermal_margin: {mode: shadow}}}")
    bad.write_text("health: {detectors: {temperature: {mode: sometimes}, thermal_margin: {least_c: 5 %}}}")
    assert scan("--faults", str(planted)).returncode == Exit.FAILED
    assert scan("--faults", str(planted), "--policy", str(good)).returncode == Exit.OK
    refused = scan("--policy", str(bad))
    assert (refused.returncode, refused.stdout) == (Exit.INVALID, "")
    assert "health.detectors.temperature.mode" in refused.stderr
    assert "health.detectors.thermal_margin.least_c" in refused.stderr


@pytest.mark.parametrize(
    ("values", "by_default", "on_warning", "state"),
    [
        ({"power_limit_w": 500}, Exit.OK, Exit.FAILED, "WARN"),
        ({"sram_threshold_exceeded": 1}, Exit.FAILED, Exit.FAILED, "FAULT"),
        ({"pcie_max_width": 16}, Exit.OK, Exit.OK, "OK"),
    ],
    ids=["warning", "fault", "none"],
)
def test_a_warning_fails_a_scan_only_where_that_is_wanted(
    muster: Command, tmp_path: Path, values: dict[str, float], by_default: Exit, on_warning: Exit, state: str
) -> None:
    planted = tmp_path / "faults.json"
    write_fault(planted, Fault(gpu=simulated_uuids(1)[0], kind="state", values=values))
    words = ["agent", "scan", "--simulated", "h100", "--gpus", "1", "--listen", "0", "--faults", str(planted)]
    said = muster.run(*words)
    assert (said.returncode, state in said.stdout.split()) == (by_default, True), said.stdout
    assert muster.run(*words, "--fail-on", "fault").returncode == by_default
    strict = muster.run(*words, "--fail-on", "warning", "--json")
    document = json.loads(strict.stdout)
    assert strict.returncode == on_warning
    assert (document["is_healthy"], document["has_warnings"]) == (by_default == Exit.OK, state == "WARN")
    assert muster.run(*words, "--fail-on", "nothing").returncode == Exit.USAGE
