"""After an attempt's end its GPUs are free, held or unknown; the driver is played, the rest is real."""

import os
from pathlib import Path

import pytest

from tests.workers.host.supervisor.attempt_case import Attempt
from workers.host.supervisor import adoption, files, gpu_check, gpu_query
from workers.host.supervisor.order import read_order
from workers.host.supervisor.proof import gpu_release

REAL = {"preparation": {"is_simulated": False}}
FREE = "print('{}')"
HELD = """print('{"GPU-2": [4711]}')"""
NO_LIBRARY = f"raise SystemExit({gpu_check.NO_LIBRARY})"
MISSING = "print('GPU-1 is not there: Not Found'); raise SystemExit(1)"
CRASHED = "raise SystemExit(9)"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that asks the driver, as it answers on a host that has one; it says what it was asked."""
    program = tmp_path / "look.py"
    program.write_text(FREE, encoding="utf-8")
    monkeypatch.setattr(gpu_query, "_GPU_CHECK", program)
    monkeypatch.setattr(gpu_release, "has_nvidia", lambda: True)
    monkeypatch.setattr(gpu_release, "_INITIAL_PID_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116
    return program


def proof_with(driver: Path, program: str, attempt: Attempt) -> dict[str, object]:
    """What is proved of an attempt of which nothing is left but what the driver says."""
    driver.write_text(program, encoding="utf-8")
    attempt.order(command=["true"], **REAL)
    return adoption.prove_clean(attempt.folder)


def test_free_gpus_are_part_of_the_proof(driver: Path, attempt: Attempt) -> None:
    proof = proof_with(driver, FREE, attempt)
    assert (proof["clean"], proof["gpu_processes"], proof["gpu_processes_unknown"]) == (True, {}, None)


def test_the_driver_is_queried_of_the_attempts_gpus_alone(driver: Path, attempt: Attempt, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    proof_with(driver, f"import sys; open({str(asked)!r}, 'w').write(' '.join(sys.argv[1:])); {FREE}", attempt)
    assert asked.read_text(encoding="utf-8") == "--who-computes GPU-1 GPU-2"


def test_a_process_that_still_computes_keeps_the_host_from_being_clean(
    driver: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "_PROOF_PATIENCE_S", 0.0)
    proof = proof_with(driver, HELD, attempt)
    assert (proof["clean"], proof["processes_left"], proof["gpu_processes"]) == (False, 0, {"GPU-2": [4711]})
    assert files.read_json(attempt.folder / files.CLEAN) == proof
    proof = proof_with(driver, FREE, attempt)
    assert proof["clean"] is True


def test_a_process_that_is_on_its_way_out_is_waited_for(driver: Path, attempt: Attempt, tmp_path: Path) -> None:
    mark = str(tmp_path / "looked")
    once = f"import os\nif os.path.exists({mark!r}): {FREE}\nelse: open({mark!r}, 'w').close(); {HELD}"
    proof = proof_with(driver, once, attempt)
    assert Path(mark).exists()
    assert (proof["clean"], proof["gpu_processes"]) == (True, {})


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (NO_LIBRARY, "libnvidia-ml.so.1 is not there"),
        (MISSING, "GPU-1 is not there: Not Found"),
        (CRASHED, "ended with code 9"),
    ],
)
def test_a_driver_that_does_not_state_leaves_it_unknown(
    driver: Path, attempt: Attempt, program: str, words: str
) -> None:
    proof = proof_with(driver, program, attempt)
    assert (proof["clean"], proof["gpu_processes"]) == (True, None)
    assert words in str(proof["gpu_processes_unknown"])


def test_a_driver_that_hangs_leaves_it_unknown_and_hangs_none(driver: Path, attempt: Attempt) -> None:
    driver.write_text("import signal; signal.pause()", encoding="utf-8")
    attempt.order(command=["true"], **REAL)
    found = gpu_release.check(read_order(attempt.folder), patience_s=0.2)
    assert (found.is_in_use, found.processes, found.unknown) == (
        False,
        None,
        "the GPU driver did not answer within 0 s",
    )


def test_in_a_pid_namespace_a_list_proves_nothing(
    driver: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_release, "_INITIAL_PID_NAMESPACE", 1)
    proof = proof_with(driver, HELD, attempt)
    assert (proof["clean"], proof["gpu_processes"]) == (True, None)
    assert "PID namespace" in str(proof["gpu_processes_unknown"])


def test_without_a_driver_it_is_unknown(driver: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_release, "has_nvidia", lambda: False)
    proof = proof_with(driver, HELD, attempt)
    assert (proof["clean"], proof["gpu_processes_unknown"]) == (True, "no NVIDIA driver is loaded")
