"""What long-running processes do alike: a helper never outlives its parent."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
print(child.pid, flush=True)
time.sleep(600)
"""
CHILD = """
import sys, time
from muster.processes import end_with_parent
end_with_parent(int(sys.argv[1]))
print("bound", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ONLY LINUX CAN NOTIFY A CHILD OF ITS PARENT'S DEATH")
def test_a_helper_dies_with_a_parent_that_was_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline() == "bound\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not _is_alive(pid))


def test_a_helper_whose_parent_is_gone_already_does_not_start() -> None:
    ran = subprocess.run([sys.executable, "-c", CHILD, "1"], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 1
    assert "the parent process has ended" in ran.stderr


def _is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"
