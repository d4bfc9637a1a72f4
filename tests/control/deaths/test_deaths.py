"""SIGKILL at each failpoint of placement, notice, release, swap and resize: the timeline ends as it does without.

Same beneficiaries, same deadlines, no notice or event twice, no GPU lost or kept without end.
"""

import ast
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

import control
from control.core.unit_of_work import UnitOfWorkFactory
from local.postgres import PostgresServer
from muster.db.engine import make_engine
from tests.control.conftest import SetClock
from tests.control.deaths.account import Account, account_of, differences
from tests.control.deaths.histories import DIES_IN, POLICY, Timeline, reclaim, withdrawal
from tests.control.deaths.play import Play, forked, listening
from tests.control.reclaim.stage import make_stage
from tests.patient import PATIENT
from tests.scaled import IS_SOAK

SERVICES: Final = Path(control.__file__).parent
CHANGERS: Final = (
    "control.attempts.attempts.step_", "control.attempts.attempts.stop_", "control.attempts.attempts.wake",
    "control.hosts.drains", "control.placement.holds", "control.attempts.reclaim_outcomes",
    "control.reclaim.victims", "muster.db.queries.gang_rows",
)  # fmt: skip
"""Modules that each module imports which may change a job, an attempt, its GPUs, a reclaim or a hold."""
ELSEWHERE: Final = {
    "nodes.cordon": "it moves no job",
    "nodes.drain": "node.drain of several nodes in one unit, whose death is in node.drain's history",
    "nodes.uncordon": "it moves no job",
    "job.submit": "stack/test_crashes.py, with the key that makes it one job",
    "host.logs": "stack/test_crashes.py",
    "training.record": "stack/test_crashes.py, by the host worker that sends the messages again",
    "job.release": "a person's word alone: it moves a job from HELD to QUEUED, where no place is",
    "job.hold": "it moves a job to HELD, which has no place then",
    "content.hold_job": "it moves a job to HELD, which has no place then",
    "content.release_job": "it moves a job from HELD to QUEUED, where no place is",
    "judge.hold_suspect": "it moves a job to HELD, which has no place then",
    "residency.hold": "it moves a job from QUEUED to HELD, which has no place then",
    "judge.suspend_evidence": "it moves no job",
    "idle.judge": "control/watch/test_idle.py, at its own commit",
    "stall.judge": "control/watch/test_stalls.py, at its own commit",
    "stall.settle": "it moves no job",
    "straggler.swap": "control/watch/test_straggler_swaps.py, at its own commit",
    "tenant_budget.hold": "it moves a job from QUEUED to HELD, which has no place then",
    "tenant_budget.stop": "it stops as budget.stop does, which has a history",
    "system.restored": "recorded before any process of the control plane starts: control/system/test_restores.py",
}


def actions() -> list[str]:
    """Return the names of the units of work, except reads, of each module of the services that may change a place."""
    found = []
    for path in SERVICES.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if _may_change_places(path, tree):
            found += [action for action in _declared_in(tree) if not action.endswith(".read")]
    return sorted(found)


def _may_change_places(path: Path, tree: ast.Module) -> bool:
    if path.parent.name == "reclaim" or path == SERVICES / "placement" / "holds.py":
        return True
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    taken = {f"{node.module}.{each.name}" for node in imports for each in node.names}
    return any(name.startswith(CHANGERS) for name in taken)


def _declared_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        is_declaration = (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "declare_action"
        )
        if is_declaration and isinstance(node.args[0], ast.Constant):  # type: ignore[attr-defined]
            yield str(node.args[0].value)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Quiet:
    """A timeline in which nothing dies: what it leaves behind, and failpoint → the requests in which it is met."""

    account: Account
    passed: dict[str, list[int]]


@dataclass
class Reported:
    """Timelines, each in a database of its own."""

    server: PostgresServer
    template: str
    folder: Path
    quiet: dict[Timeline, Quiet] = field(default_factory=dict)

    def without_a_death(self, timeline: Timeline) -> Quiet:
        if timeline not in self.quiet:
            account, _, passed = self._reported(timeline, {})
            self.quiet[timeline] = Quiet(account, passed)
        return self.quiet[timeline]

    def killed(self, timeline: Timeline, points: Sequence[str]) -> tuple[Account, list[str]]:
        """Kill it at each of these points, in the requests of ``occasions``. Return the account and its deaths."""
        passed = self.without_a_death(timeline).passed
        where: dict[int, list[str]] = {}
        for point in points:
            for number in occasions(passed.get(point, [])):
                where.setdefault(number, []).append(point)
        account, deaths, _ = self._reported(timeline, where)
        return account, deaths

    def _reported(
        self, timeline: Timeline, where: Mapping[int, Sequence[str]]
    ) -> tuple[Account, list[str], dict[str, list[int]]]:
        name = f"test_{uuid.uuid4().hex}"
        self.server.create_database(name, template=self.template)
        path = self.folder / f"{name}.json"
        try:
            with forked() as is_told_here:
                if is_told_here:
                    play = _report(timeline, where, self.server.url(name))
                    with play.stage.units.read() as session:
                        path.write_text(json.dumps([account_of(session), play.deaths, play.passed]))
            account, deaths, passed = json.loads(path.read_text())
        finally:
            self.server.drop_database(name)
        return account, deaths, passed


def occasions(met: Sequence[int]) -> list[int]:
    """Return the requests, of all that meet a failpoint, in which to die: all in `make soak`, otherwise two."""
    return list(met) if IS_SOAK else sorted({*met[:1], *met[-1:]})


def _report(timeline: Timeline, where: Mapping[int, Sequence[str]], url: str) -> Play:
    clock = SetClock()
    units = UnitOfWorkFactory(make_engine(url, limits=PATIENT), clock)
    stage = make_stage(units, clock)
    stage.set_policy(POLICY)
    play = Play(stage, where)
    with listening(play.passes):
        timeline(play)
    play.require_holds_kept()
    return play


@pytest.fixture(scope="module")
def timelines(
    postgres_server: PostgresServer, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Reported:
    return Reported(postgres_server, template_database, tmp_path_factory.mktemp("deaths"))


def test_each_unit_of_work_that_may_change_a_place_has_its_deaths() -> None:
    found, interrupted = actions(), sorted(action for of_story in DIES_IN.values() for action in of_story)
    assert interrupted == [action for action in found if action not in ELSEWHERE]
    assert set(ELSEWHERE) <= set(found), "what is no more needs no reason"


@pytest.mark.parametrize("timeline", DIES_IN, ids=lambda story: story.__name__)
def test_in_the_end_nothing_is_on_hold_and_none_is_at_it(timelines: Reported, timeline: Timeline) -> None:
    account = timelines.without_a_death(timeline).account
    assert account["holds"] == []
    assert [line for line in account["gpus"] if not line.endswith("RELEASED")] == []
    assert [line for line in account["jobs"] if "ACTIVE" in line or "QUEUED" in line] == []


@pytest.mark.parametrize("timeline", DIES_IN, ids=lambda story: story.__name__)
def test_killed_around_each_of_its_commits_it_ends_as_without(timelines: Reported, timeline: Timeline) -> None:
    """It dies before and after each commit: at its first and last in the timeline, in `make soak` at every one."""
    points = [f"{action}.{edge}" for action in DIES_IN[timeline] for edge in ("before_commit", "after_commit")]
    account, deaths = timelines.killed(timeline, points)
    assert set(deaths) == set(points), "a fault that never fires is no test"
    assert differences(timelines.without_a_death(timeline).account, account) == []


def test_a_history_that_goes_otherwise_has_another_account(timelines: Reported) -> None:
    """The comparison can fail."""
    assert differences(timelines.without_a_death(reclaim).account, timelines.without_a_death(withdrawal).account)
