"""Attempts whose programs run as a user of their own: folders and an interpreter that such a user can reach."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

import pytest

from .attempt_case import Attempt


def own_uid() -> int:
    """Return the identity of no account of this machine, and of no other process of tests: workers are forks."""
    return 1_900_000_000 + os.getpid() % 100_000 * 10


def _runs_as_another(program: str, *words: str) -> bool:
    if os.geteuid() != 0 or not Path(program).exists():
        return False
    try:
        answer = subprocess.run(
            [program, *words],
            user=own_uid(),
            group=own_uid(),
            extra_groups=[],
            capture_output=True,
            check=False,
            cwd="/",
        )
    except PermissionError:
        return False
    return answer.returncode == 0


def _open_python() -> str | None:
    """An interpreter that others may run: one below a closed home is none. The supervisor needs no more than that."""
    this = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = (sys.executable, f"/usr/bin/{this}", f"/usr/local/bin/{this}")
    return next((each for each in candidates if _runs_as_another(each, "-I", "-S", "-c", "import json, ctypes")), None)


OPEN_PYTHON: Final = _open_python()
PACKAGES: Final = sysconfig.get_path("purelib")
needs_users: Final = pytest.mark.skipif(
    OPEN_PYTHON is None,
    reason="NOT CHECKED: programs run as another user only where these tests run as root and have a Python of this "
    "version that others may run",
)


def require_torch() -> None:
    """Asked by the one test that needs it: the answer takes two seconds, and every worker collects this module."""
    is_there = OPEN_PYTHON is not None and _runs_as_another(
        OPEN_PYTHON, "-c", f"import sys; sys.path.append({PACKAGES!r}); import torch"
    )
    if not is_there:
        pytest.skip("NOT CHECKED: no torch here that another user may import")


def start(attempt: Attempt, program: str, *, uid: int | None = None, **fields: Any) -> None:
    uid = own_uid() if uid is None else uid
    attempt.order(command=[OPEN_PYTHON, "-u", "-c", program], user={"uid": uid}, **fields)
    spawn(attempt)


def spawn(attempt: Attempt) -> None:
    from workers.host import supervisor  # noqa: PLC0415  # after the fixture has set the interpreter

    supervisor.spawn_supervisor(attempt.folder)


def status_of(words: str) -> dict[str, str]:
    return {line.split(":", 1)[0]: line.split(":", 1)[1].strip() for line in words.splitlines() if ":" in line}
