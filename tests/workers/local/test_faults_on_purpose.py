"""``muster run`` of programs with each kind of fault on purpose: all are named, and each run succeeds."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from muster.domain.policy.stragglers import StragglerPolicy
from muster.domain.policy.watch import KnownLimits, WatchPolicy
from muster.train.runtime import faults
from tests.ten_faults import JOBS, SHORT_WINDOW_S, FaultyJob
from tests.train.marks import TRAINS
from tests.warm_python import WarmPython
from tests.workers.host.burial import bury
from tests.workers.local.runs import Runs
from workers.local import hangs, local_run

pytestmark = TRAINS
POLICY = WatchPolicy(
    known=KnownLimits(step_s=6, data_s=6, eval_s=6), stragglers=StragglerPolicy(window_s=SHORT_WINDOW_S)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(hangs, "TURN_S", 0.5)
    monkeypatch.setattr(local_run, "HUNG_GRACE_MS", 100)
    yield tmp_path
    for path in tmp_path.rglob("attempts/*/"):
        bury(path)


def test_each_kind_is_named_and_survived(folder: Path, warm_python: WarmPython) -> None:
    assert {kind for job in JOBS for kind in job.kinds} == set(faults._DOING)

    def run(job: FaultyJob) -> tuple[FaultyJob, dict[str, Any], list[str]]:
        own = folder / job.name
        own.mkdir()
        runs = Runs(own)
        program = {**job.program, "python": str(warm_python.daemon)}
        return job, runs.run(program, POLICY, ranks=job.num_ranks, **job.fields), runs.reported

    with ThreadPoolExecutor(len(JOBS)) as pool:
        for job, ended, reported in pool.map(run, JOBS):
            causes = tuple(attempt["cause"] for attempt in ended["attempts"])
            assert (ended["state"], causes) == ("SUCCEEDED", job.ends), (job.name, reported)
            assert job.unnamed(reported) == set(), (job.name, reported)
