"""The local stack on which documents are typed: ``muster up`` with the words that the page itself gives to it."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from muster.ports import free_port
from tests.docs.blocks import Block
from tests.docs.reader import DocumentError, Reader
from tests.stack.forked_up import forked_up
from tests.waiting import wait_until
from tests.warm_python import WarmPython

ROOT: Final = Path(__file__).resolve().parents[2]
BIN: Final = Path(sys.executable).parent
JOB_PYTHON: Final = "MUSTER_JOB_PYTHON"
START_S: Final = 300.0
PAUSE_S: Final = 0.3
PROVED: Final = Block("the start", 1, "sh", ("run", "wait"), None, "muster doctor | grep 'all HEALTHY'\n")
"""What each quick start waits for first."""
_AS_OPERATOR: Final = "HOME=/nowhere muster"
"""The profile that a page has chosen is in the home folder; without it the stack's own is taken."""
A_FAULT: Final = (
    Block(
        "a fault",
        1,
        "sh",
        ("run",),
        None,
        f"{_AS_OPERATOR} sim inject gpu \"$({_AS_OPERATOR} gpu list --json | jq -r '.[0].uuid')\" xid 95\n",
    ),
    Block("a fault", 2, "sh", ("run", "wait"), None, f"{_AS_OPERATOR} gpu list --standing quarantined | grep QUAR\n"),
)
"""What the API's pages find evidence of."""
CHECKS: Final = """
for look in doctor system 'job list' 'gpu list' 'event list --last 60'; do echo "== $look"; muster $look || true; done
for job in $(muster job list --json | jq -r '.[].id'); do muster job show "$job" || true; done
"""
_STARTED: Final = re.compile(r"^make up ARGS='(?P<words>[^']+)'$", re.MULTILINE)


def words_of_up(page: str) -> list[str]:
    """What a page's own `make up` says of the stack."""
    found = _STARTED.search(page)
    assert found is not None, "the page starts no stack"
    return shlex.split(found["words"])


@contextmanager
def local_stack(
    folder: Path, words: list[str], warm: WarmPython, parts: WarmPython, jobs: WarmPython
) -> Iterator[Reader]:
    """Hold a stack up in ``folder``, which then stands for a checkout, and yield a reader whose shell begins there.

    The reader's ``muster`` is a fork of ``warm``: several hundred are typed, and the start of an interpreter costs more
    than what it does. The stack's processes are forks of ``parts``; bench, torchrun and ranks on the hosts are forks of
    ``jobs``, which has imported torch.
    """
    checkout = folder / "checkout"
    shutil.copytree(ROOT / "examples", checkout / "examples")
    home = folder / "home"
    home.mkdir()
    port = free_port()
    said = folder / "up.txt"
    with said.open("wb") as file:
        up = subprocess.Popen(
            forked_up(parts, *words, "--port", str(port)),
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(ROOT), JOB_PYTHON: str(jobs.daemon)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        wait_until(lambda: up.poll() is not None or (checkout / ".muster" / "cli.json").exists(), timeout_s=START_S)
        assert up.poll() is None, said.read_text()
        reader = Reader(
            checkout,
            places={"127.0.0.1:8420": f"127.0.0.1:{port}"},
            variables={"HOME": str(home), "COLUMNS": "100", JOB_PYTHON: str(jobs.path)},
            path=(warm.command("muster"), BIN),
            pause_s=PAUSE_S,
        )
        try:
            yield reader
        except DocumentError as error:
            error.add_note(
                f"how the stack is:\n{reader.reported_by(CHECKS)}\noutput of muster up:\n{said.read_text()[-4000:]}"
            )
            raise
    finally:
        if up.poll() is None:
            up.send_signal(signal.SIGTERM)
            up.wait(120)
