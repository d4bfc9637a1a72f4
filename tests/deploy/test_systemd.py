"""The unit files, judged by systemd's own tools, and held to what must outlive a unit."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from muster.processes import NOTIFY_S
from tests.deploy.compose_file import ROOT
from tests.docs.systemctl import Unit

UNITS: Final = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
EACH: Final = pytest.mark.parametrize("path", UNITS, ids=[path.stem for path in UNITS])
MUSTER: Final = "/opt/muster/current/bin/muster"
ANALYZE: Final = shutil.which("systemd-analyze") or "systemd-analyze"
needs_systemd = pytest.mark.skipif(
    shutil.which(ANALYZE) is None,
    reason="NOT CHECKED BY SYSTEMD: there is no systemd-analyze here (Debian: apt install systemd)",
)
MOST_EXPOSED: Final = 25
"""Tenths of systemd's own measure, from 0 to 100: what it calls OK ends at 40."""


def unit_of(path: Path) -> Unit:
    unit = Unit(path.stem)
    unit.read(path)
    return unit


def analysed(path: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """With a program that is there in the place of the installed one, which is not."""
    here = folder / path.name
    here.write_text(path.read_text().replace(MUSTER, str(Path(sys.executable).parent / "muster")))
    return subprocess.run([ANALYZE, *words, str(here)], capture_output=True, text=True, check=False)


@needs_systemd
@EACH
def test_systemd_understands_every_line(path: Path, tmp_path: Path) -> None:
    answer = analysed(path, tmp_path, "verify", "--recursive-errors=no")
    assert (answer.returncode, answer.stdout + answer.stderr) == (0, "")


@needs_systemd
def test_systemd_would_state_what_it_does_not_understand(tmp_path: Path) -> None:
    wrong = tmp_path / "source" / "muster-agent.service"
    wrong.parent.mkdir()
    wrong.write_text((ROOT / "deploy/systemd/muster-agent.service").read_text().replace("KillMode", "KillMod"))
    wrong.write_text(wrong.read_text().replace("ProtectHome=yes", "ProtectHom=yes"))
    assert "ProtectHom" in analysed(wrong, tmp_path, "verify", "--recursive-errors=no").stderr


@needs_systemd
@EACH
def test_a_unit_is_hardly_exposed_by_systemds_own_measure(path: Path, tmp_path: Path) -> None:
    answer = analysed(path, tmp_path, "security", "--offline=yes", f"--threshold={MOST_EXPOSED}")
    assert answer.returncode == 0, answer.stdout.splitlines()[-1]


@EACH
def test_a_unit_runs_a_command_that_there_is(path: Path) -> None:
    program, *words = (unit_of(path).last("ExecStart") or "").split()
    assert program == MUSTER
    command = [sys.executable, "-m", "muster", *words, "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    for option in (word for word in words if word.startswith("--")):
        assert option in answer.stdout


@EACH
def test_no_unit_is_root_or_becomes_it(path: Path) -> None:
    unit = unit_of(path)
    assert unit.last("User") == "muster"
    assert unit.last("NoNewPrivileges") == "yes"
    assert unit.last("ProtectSystem") == "strict"
    wanted = ["CAP_SYSLOG"] if path.stem == "muster-agent" else []  # it reads the kernel log
    for kind in ("CapabilityBoundingSet", "AmbientCapabilities"):
        assert unit.settings.get(kind, []) == wanted


@EACH
def test_settings_and_secrets_come_by_a_file_and_not_by_the_unit(path: Path) -> None:
    (given,) = unit_of(path).settings["Environment"]
    assert re.fullmatch(r"MUSTER_SETTINGS=/etc/muster/(control|host|store)\.yaml", given)


def test_programs_outlive_the_host_workers_unit() -> None:
    unit = unit_of(ROOT / "deploy/systemd/muster-worker-host.service")
    assert unit.last("KillMode") == "process"
    assert unit.last("OOMPolicy") == "continue"
    assert unit.last("PrivateTmp") == "no"
    assert unit.last("RuntimeDirectory") is None


def test_no_unit_sweeps_away_what_programs_of_the_same_user_hold() -> None:
    """RemoveIPC empties the shared memory of a user, and programs run as the user of every unit."""
    assert all(unit_of(path).last("RemoveIPC") in {None, "no"} for path in UNITS)


def test_gpus_are_reached_by_hosts_units_alone() -> None:
    for path in UNITS:
        unit = unit_of(path)
        has_gpus = "char-nvidia rw" in unit.settings.get("DeviceAllow", [])
        assert has_gpus == (path.stem in {"muster-agent", "muster-worker-host"})
        assert unit.last("DevicePolicy" if has_gpus else "PrivateDevices") == ("closed" if has_gpus else "yes")


def test_a_worker_that_gives_jobs_users_keeps_no_more_of_root_than_that_takes() -> None:
    folder = ROOT / "deploy/systemd"
    unit = unit_of(folder / "muster-worker-host.service")
    unit.read(folder / "muster-worker-host.service.d/job-users.conf")
    assert (unit.last("User"), unit.last("NoNewPrivileges"), unit.last("ProtectSystem")) == ("root", "yes", "strict")
    powers = " ".join(unit.settings["CapabilityBoundingSet"])
    wanted = "SETUID SETGID KILL CHOWN FOWNER DAC_OVERRIDE SYS_PTRACE SYS_RESOURCE BPF NET_ADMIN"
    assert powers.split() == [f"CAP_{name}" for name in wanted.split()]
    assert not unit.settings.get("StateDirectory")
    assert unit_of(folder / "muster-agent.service").last("StateDirectoryMode") == "0711"


@EACH
def test_a_unit_whose_loops_do_not_advance_is_started_again(path: Path) -> None:
    unit = unit_of(path)
    assert (unit.last("Type"), unit.last("NotifyAccess"), unit.last("Restart")) == ("notify", "main", "always")
    assert int(unit.last("WatchdogSec") or 0) >= 3 * NOTIFY_S
