"""``muster agent scan``, as a real process on a simulated GPU."""

import subprocess
from pathlib import Path

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
