"""Version 2 of this machine's own kernel, as far as it has it: many a host with version 1 mounts it as well."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.workers.host.supervisor.attempt_case import until
from workers.host.supervisor.cgroup.group import Group, make_group
from workers.host.supervisor.cgroup.place import V2, Place, find_place
from workers.host.supervisor.order_parts import HostLimits
from workers.host.supervisor.proof.processes import living_processes

LEAVES_A_DAEMON: Final = (
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0: os.execve('/bin/sleep', ['sleep', '600'], {})\n"
    "    os._exit(0)\n"
    "os.wait(); time.sleep(600)\n"
)


def place_of_v2(folder: Path) -> Place:
    """As if this host had version 2 alone."""
    own = folder / "proc" / "self"
    own.mkdir(parents=True)
    groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    (own / "cgroup").write_text("\n".join(line for line in groups if line.startswith("0:")), encoding="utf-8")
    (own / "mountinfo").write_bytes(Path("/proc/self/mountinfo").read_bytes())
    return find_place(folder / "proc")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_of_v2(tmp_path)


@pytest.fixture
def group(place: Place) -> Iterator[Group]:
    made = make_group(place, f"muster-v2-{os.getpid()}", HostLimits())
    if made.kind != V2:
        pytest.skip(f"NOT CHECKED: no cgroup of version 2 can be made here: {made.reason}")
    yield made
    made.kill()
    until(made.remove, "the group's end")


def test_all_of_a_group_die_at_once_and_it_is_gone(group: Group) -> None:
    # It waits for the line, so that it is in the group before its first fork.
    with subprocess.Popen([sys.executable, "-c", f"input()\n{LEAVES_A_DAEMON}"], stdin=subprocess.PIPE) as program:
        group.place(program.pid)
        assert program.stdin is not None
        program.stdin.write(b"\n")
        program.stdin.flush()
        until(lambda: len(group.processes()) == 2, "the program and its daemon")
        both = group.processes()
        assert program.pid in both
        assert not group.remove(), "while a process lives in it"
        group.kill()
        assert program.wait(90) == -9
    until(lambda: not both & set(living_processes()), "the end of both")
    until(group.remove, "the group's end")
    assert not any(folder.exists() for folder in group.folders.values())


def test_limits_of_version_2_are_in_force(place: Place) -> None:
    """What they do to a program is tried in ``test_cgroups``, by whichever version this machine divides with."""
    limits = HostLimits(memory_bytes=64 << 20, pids=50, cpus=1.0)
    limited = make_group(place, f"muster-v2-limited-{os.getpid()}", limits)
    limited.remove()
    if limited.reason is not None:
        pytest.skip(f"NOT CHECKED: version 2 divides nothing for us here: {limited.reason}")
    assert limited.kind == V2
