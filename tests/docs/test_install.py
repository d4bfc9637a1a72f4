"""`docs/install.md`, typed from the first line to the last against real servers and processes."""

import json
import re
import subprocess

import pytest
import redis

from tests.docs.blocks import blocks_of, undecided
from tests.docs.installation import RELEASES, ROOT, Installation, installation
from tests.swept import swept_folder
from tests.waiting import wait_until
from tests.warm_python import WarmPython

PAGE = ROOT / "docs" / "install.md"
BLOCKS = blocks_of(PAGE)


def test_every_block_is_typed_or_states_why_not() -> None:
    assert undecided(BLOCKS) == []


def test_the_release_is_the_one_that_the_page_installs() -> None:
    assert f'version = "{RELEASES[0]}"' in (ROOT / "pyproject.toml").read_text()
    assert f"/opt/muster/{RELEASES[0]}/" in PAGE.read_text()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_page_holds_as_it_is_typed_and_so_does_what_it_guarantees_next_to(
    warm_muster: WarmPython, warm_python: WarmPython
) -> None:
    """One test: several would be dealt out to several workers, and each would install everything again."""
    with swept_folder() as folder, installation(folder, warm_muster, warm_python) as machine:
        machine.reader().read(BLOCKS)
        the_job_outlived_the_restart_of_its_hosts_units(machine)
        muster_reaches_its_own_keys_of_the_broker_and_no_other(machine)
        nothing_was_refused_on_the_way(machine)
        each_process_states_that_it_is_well(machine)
        a_part_that_is_gone_is_reported_by_name(machine)


def the_job_outlived_the_restart_of_its_hosts_units(installed: Installation) -> None:
    def attempts() -> list[str]:
        listed = json.loads(typed(installed, "muster --profile acme job list --json"))
        job_id = next(job["id"] for job in listed if job["name"] == "outlives")
        job = json.loads(typed(installed, f"muster --profile acme job show {job_id} --json"))
        return [str(attempt["cause"]) for attempt in job["attempts"]]

    wait_until(lambda: attempts() == ["succeeded"], timeout_s=240.0, pause_s=1.0)


def muster_reaches_its_own_keys_of_the_broker_and_no_other(installed: Installation) -> None:
    password = (installed.root / "etc/muster-broker.password").read_text().strip()
    with redis.Redis(port=int(installed.ports["6379"]), username="muster", password=password) as client:
        assert client.llen("muster:host.any") == 0
        for refused in (("GET", "x"), ("BRPOP", "muster:host.any", "1"), ("SET", "muster:x", "1")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*refused)
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.config_get("maxmemory")


def nothing_was_refused_on_the_way(installed: Installation) -> None:
    for unit in ("muster-api", "muster-scheduler", "muster-worker-control", "muster-agent", "muster-worker-host"):
        log = installed.log(unit)
        assert log, unit
        assert "Traceback" not in log, unit
        assert "NOPERM" not in log, unit


def each_process_states_that_it_is_well(installed: Installation) -> None:
    for part in ("api", "scheduler", "worker-control"):
        typed(installed, f"MUSTER_SETTINGS={installed.root}/etc/muster/control.yaml muster health {part}")
    typed(installed, f"MUSTER_SETTINGS={installed.root}/etc/muster/store.yaml muster health store")
    settings = f"MUSTER_SETTINGS={installed.root}/etc/muster/control.yaml"
    assert re.search(r"ok +content store", typed(installed, f"{settings} COLUMNS=200 muster doctor || true"))
    for part in ("agent", "worker-host"):
        typed(installed, f"MUSTER_SETTINGS={installed.root}/etc/muster/host.yaml muster health {part}")


def a_part_that_is_gone_is_reported_by_name(installed: Installation) -> None:
    typed(installed, "systemctl stop muster-scheduler")
    settings = f"MUSTER_SETTINGS={installed.root}/etc/muster/control.yaml"
    said = typed(installed, f"{settings} muster health scheduler || true")
    assert "no muster-scheduler of this machine is connected" in said
    typed(installed, "systemctl start muster-scheduler")


def typed(machine: Installation, command: str) -> str:
    """At the reader's own shell, as it was left."""
    ended: subprocess.CompletedProcess[str] = machine.reader()._typed(command)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout
