"""A result and, next to it, the conditions of its measurement."""

import json
import socket
from pathlib import Path

import pytest

from agents.probes.profiles import PROFILES
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from benchmarks import runs
from benchmarks.figures import Basis, Figure
from benchmarks.smoke import FIXED_KEYS, require_written
from tests.benchmarks.repository import git

FIGURES = [Figure("decision", 0.5, "ms", 1.0, peers={"p99": 0.7}, basis=Basis.CPU)]


def test_a_result_is_a_list_of_rows_with_all_that_other_programs_read(tmp_path: Path) -> None:
    path = runs.write("any", FIGURES, [30.0], tmp_path)
    (row,) = json.loads(path.read_text(encoding="utf-8"))
    assert {key: row[key] for key in FIXED_KEYS} == {
        "name": "decision",
        "value": 0.5,
        "unit": "ms",
        "bar": 1.0,
        "better": "lower",
        "holds": True,
        "peers": {"p99": 0.7},
    }
    require_written(path)
    assert sorted(tmp_path.glob("*.json")) == [path], "its other files are in a folder of their own"


def test_next_to_it_stand_commit_machine_date_and_calibration(tmp_path: Path) -> None:
    runs.write("any", FIGURES, [30.0, 60.0, 45.0], tmp_path)
    run = json.loads(runs.run_path("any", tmp_path).read_text(encoding="utf-8"))
    assert run["commit"] == git(runs.ROOT, "rev-parse", "HEAD")
    assert set(run["machine"]) == {"cpu", "cores", "memory_gib", "gpus", "driver", "torch", "python", "kernel"}
    assert run["measured_at"].endswith("Z")
    calibration = run["calibration"]
    assert (calibration["samples"], calibration["median_ms"], calibration["most_ms"]) == (3, 45.0, 60.0)


def test_a_machine_with_gpus_states_each_and_their_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = SimulatedProbe(PROFILES["h100"], simulated_uuids(2))
    identity = probe.identify()
    monkeypatch.setattr(runs, "open_nvml_probe", lambda: probe)
    machine = runs.machine()
    assert machine["gpus"] == [gpu.model for gpu in identity.gpus]
    assert len(machine["gpus"]) == 2
    assert machine["driver"] == identity.driver_version


def test_no_host_is_named_and_no_path() -> None:
    text = json.dumps(runs.run_of([30.0]))
    assert socket.gethostname() not in text
    assert "/" not in text


def test_every_result_of_the_repository_states_at_which_commit_it_was_recorded() -> None:
    names = {path.stem for path in runs.RESULTS.glob("*.json")}
    recorded = {path.stem: json.loads(path.read_text()) for path in (runs.RESULTS / runs.RUNS).glob("*.json")}
    assert set(recorded) == names
    assert all(len(run["commit"]) == 40 for run in recorded.values())
