"""Seven hosts, each a real process whose gathers are torch's over gloo: the bad ones are named, and no other."""

import asyncio
from pathlib import Path

import pytest

from tests.train.marks import TRAINS
from tests.warm_python import WarmPython
from tests.workers.host.pairwise.gang import Gang, check_of, names
from workers.host.pairwise.lead import Lead

pytestmark = TRAINS
DELAYED = "pairwise.gather~3"
NO_SPEED = 0.01
"""Only what fails counts: where nothing is slow on purpose, no rate of a busy machine shall be."""


@pytest.mark.timeout(1200)
def test_one_delayed_host_of_seven_is_named_within_four_rounds(tmp_path: Path, warm_python: WarmPython) -> None:
    hosts = names(7)
    with Gang(tmp_path, python=warm_python.path) as gang:
        outcome = gang.check(check_of(hosts), {"gpu-04": DELAYED})
        ends = gang.ends(hosts)
    found = outcome.assessment
    assert list(found.bad) == ["gpu-04"], gang.reported
    assert set(found.cleared) == set(hosts) - {"gpu-04"}, gang.reported
    assert len(outcome.rounds) <= 4
    assert [len(group.hosts) for group in outcome.rounds[0]] == [2, 2, 3]
    assert "slow: " in found.bad["gpu-04"]
    assert not outcome.is_good
    assert ends["gpu-04"] == (1, f"gpu-04: bad: {found.bad['gpu-04']}")
    assert {end for host, end in ends.items() if host != "gpu-04"} == {
        (0, f"{host}: cleared") for host in found.cleared
    }


@pytest.mark.timeout(1200)
def test_a_host_that_is_gone_and_one_whose_gathers_die_are_both_named(tmp_path: Path, warm_python: WarmPython) -> None:
    hosts = names(7)
    with Gang(tmp_path, frozenset({"gpu-01"}), warm_python.path) as gang:
        outcome = gang.check(check_of(hosts, slow_fraction=NO_SPEED), {"gpu-05": "pairwise.gather"})
    found = outcome.assessment
    assert set(found.bad) == {"gpu-01", "gpu-05"}, gang.reported
    assert found.bad["gpu-01"] == "was silent in rounds 1, 2"
    assert "gpu-05: its process ended by signal 9" in found.bad["gpu-05"]
    assert set(found.cleared) == set(hosts) - {"gpu-01", "gpu-05"}
    assert len(outcome.rounds) <= 4


@pytest.mark.timeout(900)
def test_strangers_are_not_let_in_and_leave_with_the_reason(tmp_path: Path) -> None:
    hosts = ("gpu-00", "gpu-01")
    with Gang(tmp_path) as gang:
        ports: list[int] = []

        def ready(port: int) -> None:
            ports.append(port)
            gang.join("gpu-07", port)
            gang.join("gpu-01", port, run="another")

        def receive(line: str) -> None:
            gang.reported.append(line)
            if sum("is not let in" in each for each in gang.reported) == 2 and "is not let in" in line:
                ends.update(gang.ends(["gpu-01", "gpu-07"]))
                for host in hosts:
                    gang.join(host, ports[0])

        ends: dict[str, tuple[int, str]] = {}
        outcome = asyncio.run(Lead(check_of(hosts, slow_fraction=NO_SPEED), receive).run(("127.0.0.1", 0), ready))
    assert outcome.is_good, gang.reported
    assert ends["gpu-01"] == (4, "error: the lead refused this host: it names another run")
    assert ends["gpu-07"] == (4, "error: the lead refused this host: it is none of gpu-00, gpu-01")
