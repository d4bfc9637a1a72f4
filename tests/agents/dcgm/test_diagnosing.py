"""``dcgmi diag`` as a program that a test writes: good, failing, missing, hanging, cut off, and of another GPU."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.dcgm.diagnosing import DcgmDiag, Diagnosed, DiagnosingError
from tests.waiting import wait_until

SERIAL = "1650000000003"
INDEX = 3


def document(*tests: dict[str, Any], serial: str = SERIAL) -> str:
    return json.dumps(
        {
            "DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": list(tests)}]},
            "entity_groups": [
                {"entity_group": "GPU", "entities": [{"entity_id": INDEX, "serial_num": serial, "device_id": "2330"}]}
            ],
            "metadata": {"version": "4.2.3", "Driver Version Detected": "580.95.05"},
        }
    )


def result_of(
    name: str, status: str, *, group: str = "GPU", entity: int = INDEX, severity: int | None = None
) -> dict[str, Any]:
    advice = {} if severity is None else {"error_severity": severity}
    warning = {"warning": "GPU 3 Error\tusing  CUDA", "error_id": 92, **advice}
    result = {"entity_group": group, "entity_id": entity, "status": status}
    return {"name": name, "results": [{**result, "warnings": [warning]} if status == "Fail" else result]}


GOOD = document(result_of("memory", "Pass"), result_of("diagnostic", "Pass"), result_of("pulse_test", "Skip"))
Write = Callable[[str], DcgmDiag]


@pytest.fixture
def dcgmi(tmp_path: Path) -> Write:
    def write(script: str) -> DcgmDiag:
        path = tmp_path / "dcgmi"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        return DcgmDiag(2, command=str(path))

    return write


def saying(dcgmi: Write, text: str) -> DcgmDiag:
    return dcgmi(f"cat <<'JSON'\n{text}\nJSON")


def run(diag: DcgmDiag, *, deadline_s: float = 60, stop: threading.Event | None = None) -> Diagnosed:
    return diag.run(INDEX, SERIAL, deadline_s, stop or threading.Event())


def test_what_passed_is_counted_and_the_gpu_is_requested_by_its_slot(dcgmi: Write, tmp_path: Path) -> None:
    diag = dcgmi(f"echo \"$@\" > {tmp_path}/asked\ncat <<'JSON'\n{GOOD}\nJSON")
    assert run(diag) == Diagnosed("DCGM 4.2.3", 2, 2, ())
    assert (tmp_path / "asked").read_text(encoding="ascii") == "diag -r 2 -j -i 3\n"


def test_what_fails_on_the_gpu_is_stated_in_one_line_with_its_number(dcgmi: Write) -> None:
    found = run(saying(dcgmi, document(result_of("memory", "Pass"), result_of("diagnostic", "Fail", severity=2))))
    assert found.failures == ("diagnostic failed on GPU 3: GPU 3 Error using CUDA (DCGM 92)",)
    assert found.num_passed == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (document(result_of("persistence_mode", "Fail", severity=5)), "no fault of this GPU"),
        (document(result_of("software", "Fail", group="CPU", entity=0)), "no fault of this GPU"),
        (document(result_of("memory", "Fail", entity=5)), "no fault of this GPU"),
        (document(result_of("memory", "Pass"), serial="another"), "tested the GPU another, not"),
        (document(result_of("memory", "Maybe")), "the result of memory cannot be understood"),
        (document(result_of("memory", "Skip")), "tested nothing of this GPU"),
        (json.dumps({"DCGM Diagnostic": {"runtime_error": "no GPU is idle"}}), "did not finish: no GPU is idle"),
        (GOOD[: len(GOOD) // 2], "ends or breaks at line 1"),
        ("", "there is no JSON in it"),
        ("[1, 2]", "there is no JSON in it"),
    ],
    ids=[
        "set up wrongly",
        "CPU",
        "another GPU",
        "another board",
        "unknown",
        "skipped",
        "error",
        "half",
        "empty",
        "list",
    ],
)
def test_what_proves_nothing_of_the_gpu_is_reported_as_itself(dcgmi: Write, text: str, words: str) -> None:
    with pytest.raises(DiagnosingError, match=words):
        run(saying(dcgmi, text))


def test_a_host_without_dcgm_is_reported_what_to_do() -> None:
    with pytest.raises(DiagnosingError, match="is not on this host: install DCGM"):
        run(DcgmDiag(1, command="dcgmi-nowhere"))


def test_a_program_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "dcgmi"
    path.write_bytes(b"\x7fELF rubbish")
    path.chmod(0o755)
    with pytest.raises(DiagnosingError, match="cannot be started"):
        run(DcgmDiag(1, command=str(path)))


def test_what_it_stated_of_its_failure_is_reported_next_to(dcgmi: Write) -> None:
    with pytest.raises(DiagnosingError, match=r"no JSON in it.*\(Error: unable to connect to the host engine\)"):
        run(dcgmi("echo 'Error: unable to connect to the host engine' >&2; exit 255"))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[-1].split()[0] == "Z"


def test_one_that_hangs_is_ended_with_all_that_it_started(dcgmi: Write, tmp_path: Path) -> None:
    diag = dcgmi(f"trap '' TERM\nsleep 1000 &\necho $! > {tmp_path}/child\nwait")
    began_s = time.monotonic()
    with pytest.raises(DiagnosingError, match="did not end within 2 s"):
        run(diag, deadline_s=2)
    assert time.monotonic() - began_s < 60
    child = int((tmp_path / "child").read_text(encoding="ascii"))
    wait_until(lambda: is_gone(child))


def test_an_agent_that_is_to_end_waits_for_no_diagnosis(dcgmi: Write) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(DiagnosingError, match="asked to end"):
        run(dcgmi("sleep 1000"), stop=stop)


def test_one_that_writes_for_ever_is_ended(dcgmi: Write) -> None:
    with pytest.raises(DiagnosingError, match="wrote more than 8 MiB"):
        run(dcgmi("cat /dev/zero"))


def test_a_signal_that_ended_it_leaves_no_result(dcgmi: Write) -> None:
    with pytest.raises(DiagnosingError, match="there is no JSON"):
        run(dcgmi(f"kill -{int(signal.SIGSEGV)} $$"))
