"""The debug page of a job: slow ranks with their place, histograms, the table by rank, short memory, and no reports."""

import csv
import io
import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from sqlalchemy import text, update

from console import paging
from console.rendering import HEADERS
from control.hosts import protocol
from control.jobs import jobs
from control.jobs.gang_times import GangTimes
from control.jobs.rank_figures import RankRow
from muster.db.models import LineFindingRow, TrainingRank
from muster.domain.errors import NotFoundError
from muster.domain.exit.fault_lines import Role
from tests.console.conftest import Console
from tests.console.played_job import SUCCESS, PlayedJob, played_job, struck

MANY = text(
    """
    INSERT INTO training_ranks (attempt_id, rank, tenant_id, node_id, step_s, updated_at, pace)
    SELECT :attempt_id, rank, :tenant_id, 'n', 0.75, now(), jsonb_build_object('own_s', 0.5 + rank * 0.0001)
    FROM generate_series(0, 119) AS made (rank)
    """
)
WIDE = text(
    """
    INSERT INTO training_ranks (attempt_id, rank, tenant_id, node_id, world_size, step_s, updated_at, pace)
    SELECT :attempt_id, rank, :tenant_id, 'n', CAST(:num_ranks AS int) + 2, 0.75,
        now() - CASE rank % 1000 WHEN 9 THEN 900 ELSE 0 END * interval '1 s', jsonb_build_object(
            'own_s', CASE rank % 1000 WHEN 7 THEN 1.0 ELSE 0.5 END, 'memory_mib', 40000 + rank % 97)
    FROM generate_series(0, CAST(:num_ranks AS int) - 1) AS made (rank)
    """
)
SLOW = ["7", "1007", "2007", "3007", "4007"]
SILENT = ["9", "1009", "2009", "3009", "4009"]
QUARANTINE = text("UPDATE gpus SET standing = 'QUARANTINED' WHERE uuid = :uuid")


def running(seen: Console) -> PlayedJob:
    job = played_job(seen)
    job.start()
    return job


def add_rank(job: PlayedJob, rank: int, *, steps_s: tuple[float, ...] = (), **pace: Any) -> None:
    """A rank of the newest attempt. ``steps_s``: of the steps that are kept of it."""
    points = [[number + 1, 1.0, step_s] for number, step_s in enumerate(steps_s)]
    with job.seen.units.begin(job.seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        own: dict[str, Any] = {"attempt_id": job.newest.attempt.id, "tenant_id": job.seen.fleet.tenant_id}
        own |= {"node_id": job.host.node_id, "updated_at": unit.now, "pace": pace or None, "world_size": 4}
        history = {"stride": 1, "points": points} if points else None
        unit.session.add(TrainingRank(**own, rank=rank, step=60, step_s=0.75, history=history))


def page_of(job: PlayedJob, query: str = "", actor: str = "tenant_member") -> str:
    return job.seen.text(f"/console/jobs/{job.job_id}/debug{query}", actor)


def ranks_in(page: str) -> list[str]:
    return re.findall(r'<th scope="row">(\d+) <small>', page)


def test_the_slow_rank_is_named_with_its_host_and_gpu_against_ranks_of_equal_work(seen: Console) -> None:
    job = running(seen)
    for rank in range(4):
        add_rank(job, rank, own_s=0.75 if rank == 1 else 0.5, wait_s=0.0, collective_s=0.1, memory_mib=40960)
    page = page_of(job)
    assert "Rank 1 on " in page
    assert re.search(r"Rank 1 on \w+, GPU 1 : own compute 750 ms a step, 1\.50 × the median", page)
    assert "40 GiB 50% of its GPU" in page
    assert "Debug: rank by rank" in seen.text(f"/console/jobs/{job.job_id}", "tenant_member")
    add_rank(job, 4, own_s=5.0, place="1/0")
    assert "Rank 4 on" not in page_of(job), "no other rank has equal work"


def test_ranks_are_sorted_by_the_server_and_paged(seen: Console) -> None:
    job = running(seen)
    with seen.units.begin(seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        unit.session.execute(MANY, {"attempt_id": job.newest.attempt.id, "tenant_id": seen.fleet.tenant_id})
    found: list[str] = []
    for order, expected in (("desc", range(119, -1, -1)), ("asc", range(120))):
        address, found = f"/console/jobs/{job.job_id}/debug?sort=own_ratio&order={order}", []
        while address:
            page = seen.get(address, "tenant_member").text
            found += ranks_in(page)
            older = re.search(r'href="([^"]*cursor=[^"]*)#ranks-title"', page)
            address = older.group(1).replace("&amp;", "&") if older else ""
        assert found == [str(rank) for rank in expected]
    assert len(ranks_in(seen.get(f"/console/jobs/{job.job_id}/debug").text)) == 50
    assert seen.get(f"/console/jobs/{job.job_id}/debug?sort=colour").status_code == 422
    assert seen.get(f"/console/jobs/{job.job_id}/debug?cursor=made-up").status_code in {400, 422}


def test_the_next_page_is_of_the_same_host_and_rank_where_these_are_0(seen: Console) -> None:
    job = running(seen)
    add_wide(job, 120)
    where = f"/console/jobs/{job.job_id}/debug"
    raw = seen.get(f"{where}?sort=rank&order=asc&rank=0", "tenant_member").text
    (older,) = re.findall(r'href="([^"]*cursor=[^"]*)#ranks-title"', raw)
    answer = seen.get(unescape(older), "tenant_member")
    assert answer.status_code == 200, older
    assert ranks_in(answer.text) == [str(rank) for rank in range(50, 100)]
    assert 'name="rank" min="0" max="2147483647" value="0"' in answer.text
    filters = {"rank": 0, "host": 0, "attempt": None, "name": ""}
    page = paging.page_of(b"x" * 32, filters, [1, 2], size=1, path="p", place=lambda each: [str(each)])
    assert "p?rank=0&host=0&name=&cursor=" in str(page.older)


def test_the_histogram_has_the_steps_of_all_ranks_and_of_one(seen: Console) -> None:
    job = running(seen)
    for rank in range(4):
        add_rank(job, rank, steps_s=(60.0, *(0.25,) * 9, 0.25 if rank else 8.0), collective_s=0.1 * rank)
    where = f"/console/jobs/{job.job_id}/debug.json"
    charts = {chart["title"]: chart for chart in seen.get(f"{where}?rank=0", "tenant_member").json()["charts"]}
    everybody, zero = charts["Step time in ms"]["lines"]
    assert (everybody["name"], zero["name"]) == ("all ranks", "rank 0")
    assert [everybody["points"][0][1], everybody["points"][-1][1]] == [97.5, 2.5], "shares of 40 steps"
    assert [zero["points"][0][1], zero["points"][-1][1]] == [90.0, 10.0]
    assert "grow by a factor" in charts["Step time in ms"]["note"]
    begins = [point[0] for point in everybody["points"]]
    assert begins[0] == 250.0
    assert begins[2] / begins[1] > 1.1, "the classes grow"
    collective = charts["Collectives a step in ms"]
    assert sum(number for _, number in collective["lines"][0]["points"]) == 4
    assert "p50 150 ms" in collective["note"]
    assert "Of rank 9 no step is known." in seen.get(f"{where}?rank=9").json()["charts"][0]["note"]


def add_wide(job: PlayedJob, num_ranks: int) -> None:
    """Ranks of hosts with 2 each; the 8th of each thousand computes for twice as long, the 10th is silent."""
    with job.seen.units.begin(job.seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        own = {"attempt_id": job.newest.attempt.id, "tenant_id": job.seen.fleet.tenant_id}
        unit.session.execute(WIDE, {**own, "num_ranks": num_ranks})


def test_of_a_wide_gang_slow_and_silent_ranks_are_found_by_host(seen: Console) -> None:
    job = running(seen)
    add_wide(job, 5_000)
    page = page_of(job)
    assert re.findall(r"Rank (\d+) on n ?: own compute 1 s a step, 2\.00 × the median", page) == SLOW
    assert re.search(r"Rank 9 on n ?: its last report is 900 s older than the newest", page)
    assert "5 silent, 2 never reported" in page
    assert re.search(r"Rank 5000 ?: it has never reported", page)
    assert "2,500 hosts; a cell shows the worst of 3 neighbours" in page
    assert "Median of 4,096 ranks" in page
    raw = seen.get(f"/console/jobs/{job.job_id}/debug", "tenant_member").text
    assert raw.count('class="rank rank--odd"') == 7, "some of the 10 hosts are neighbours"
    assert f"?log={job.newest.attempt.id}//1007#logs" in raw
    where = f"/console/jobs/{job.job_id}/debug"
    for query, expected in (("only=slow", SLOW), ("only=silent", SILENT)):
        assert ranks_in(seen.get(f"{where}?{query}&sort=rank&order=asc", "tenant_member").text) == expected
    of_host = seen.get(f"{where}?host=503&sort=rank&order=asc", "tenant_member").text
    assert ranks_in(of_host) == ["1006", "1007"]
    assert "No such rank." in page_of(job, "?host=99999")
    assert seen.get(f"{where}?only=all-of-them", "tenant_member").status_code == 422


def test_a_rank_that_has_ended_or_has_done_no_step_is_not_silent(seen: Console) -> None:
    job = running(seen)
    add_wide(job, 120)
    assert "1 silent, 2 never reported" in page_of(job)
    for change in ({"outcome": "done"}, {"outcome": None, "step_s": None}):
        with seen.units.begin(seen.fleet.tenant, jobs.READ, quiet=True) as unit:
            unit.session.execute(update(TrainingRank).where(TrainingRank.rank == 9).values(**change))
        page = page_of(job, "?only=silent")
        assert "0 silent, 2 never reported" in page, change
        assert "No such rank." in page, change


def test_of_a_wide_gang_the_charts_have_ranks_chosen_evenly_and_the_file_all(seen: Console) -> None:
    job = running(seen)
    add_wide(job, 5_000)
    where = f"/console/jobs/{job.job_id}/debug"
    (chart,) = seen.get(f"{where}.json", "tenant_member").json()["charts"]
    assert chart["title"] == "Peak memory in GiB"
    assert "As 4,096 of 5,000 ranks reported last: p50 " in chart["note"]
    assert sum(number for _, number in chart["lines"][0]["points"]) == 4_096
    rows = list(csv.DictReader(io.StringIO(seen.get(f"{where}.csv", "tenant_member").text)))
    assert [int(row["rank"]) for row in rows] == list(range(5_000))
    assert [row["rank"] for row in rows if row["is_slow"] == "true"] == SLOW


def test_a_rank_on_a_gpu_out_of_service_is_among_those_with_faults(seen: Console) -> None:
    job = running(seen)
    for rank in range(2):
        add_rank(job, rank, own_s=0.5)
    assert "No such rank." in page_of(job, "?only=faulty")
    with seen.units.begin(seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        unit.session.execute(QUARANTINE, {"uuid": job.newest.hosts[0].gpus[1]})
    raw = seen.get(f"/console/jobs/{job.job_id}/debug?only=faulty", "tenant_member").text
    assert ranks_in(raw) == ["1"]
    assert "GPU quarantined" in raw


def test_the_csv_has_each_rank_and_figure(seen: Console) -> None:
    job = running(seen)
    add_rank(job, 0, own_s=0.5, data_s=0.25, forward_s=0.25, samples=640, samples_per_step=8, tokens_per_s=100.0)
    add_rank(job, 1)
    answer = seen.get(f"/console/jobs/{job.job_id}/debug.csv", "tenant_member")
    zero, one = csv.DictReader(io.StringIO(answer.text))
    assert (zero["rank"], zero["samples"], zero["samples_per_s"]) == ("0", "640.0", "16.0")
    assert zero["gpu_uuid"] == job.newest.hosts[0].gpus[0]
    assert (one["rank"], one["own_s"]) == ("1", "")
    assert "attempt-1-ranks.csv" in answer.headers["content-disposition"]


def test_the_csv_has_the_headers_of_each_file_and_a_fault_before_its_rows_is_an_answer(
    seen: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running(seen)
    add_rank(job, 0, own_s=0.5)
    where = f"/console/jobs/{job.job_id}/debug.csv"
    assert seen.get(where, "tenant_member").headers["content-security-policy"] == HEADERS["Content-Security-Policy"]

    def gone(*_: Any) -> list[RankRow]:
        raise NotFoundError

    monkeypatch.setattr(GangTimes, "rows", gone)
    assert seen.get(where, "tenant_member").status_code == 404


def test_numbers_that_no_rank_can_have_break_no_page(seen: Console) -> None:
    job = running(seen)
    for rank, own_s in enumerate((0.0, 5e-324, 1e300, 1e-300, 0.5)):
        add_rank(job, rank, steps_s=(1.0, own_s), own_s=own_s, data_s=own_s, samples_per_step=1e300, memory_mib=own_s)
    where = f"/console/jobs/{job.job_id}/debug"
    for address in (where, f"{where}?sort=memory_mib", f"{where}?sort=rank&order=asc", f"{where}.json", f"{where}.csv"):
        assert seen.get(address, "tenant_member").status_code == 200, address


def test_each_attempt_is_chosen_by_its_number(seen: Console) -> None:
    job = struck(seen)
    assert "Attempt 2" in page_of(job)
    assert "Attempt 1, last report" in page_of(job, "?attempt=1")
    assert seen.get(f"/console/jobs/{job.job_id}/debug?attempt=9", "tenant_member").status_code == 404
    assert seen.get(f"/console/jobs/{job.job_id}/debug", "other_tenant").status_code == 404


def test_what_is_missing_is_stated(seen: Console) -> None:
    job = played_job(seen)
    assert "It was never placed" in page_of(job)
    job.start()
    assert "No rank of attempt 1 has reported yet" in page_of(job)
    job.trains(1, 30)
    assert "No rank reports a pace" in page_of(job)
    job.ends(SUCCESS)
    other = job.seen.fleet.submit(name="silent", shape={"gpus_per_node": 2})
    assert "It was never placed" in seen.text(f"/console/jobs/{other}/debug")


def test_a_rank_short_of_memory_has_a_fault_also_behind_the_lines_shown(
    seen: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running(seen)
    for rank in range(3):
        add_rank(job, rank, own_s=0.5)
    with seen.units.begin(seen.fleet.tenant, protocol.LOGS, quiet=True) as unit:
        own: dict[str, Any] = {"attempt_id": job.newest.attempt.id, "node_id": job.host.node_id, "role": Role.ROOT}
        own |= {"host": "", "peer": "", "port": 0, "hca": "", "count": 1, "pattern": "cuda.out_of_memory"}
        for number, rank in enumerate((*range(3), None, 0)):
            own |= dict.fromkeys(("first_at", "last_at", "received_at"), unit.now - timedelta(seconds=number))
            unit.session.add(LineFindingRow(**own, key=str(number), rank=rank, text="out of memory"))
    monkeypatch.setattr("control.watch.memory_lines.LINES_SHOWN", 1)
    faulty = "?only=faulty&sort=rank&order=asc"
    where = f"/console/jobs/{job.job_id}/debug{faulty}"
    assert ranks_in(seen.get(where, "tenant_member").text) == ["0", "1", "2"]
    assert "More ranks may have faults" not in page_of(job, faulty)
    assert ranks_in(seen.get(where, "auditor").text) == [], "lines need the right to read logs"
    monkeypatch.setattr("control.jobs.gang_hosts.MOST_FAULTY", 2)
    assert ranks_in(seen.get(where, "tenant_member").text) == ["0", "1"]
    assert "More ranks may have faults: read are the first 2 with a faulty GPU" in page_of(job, faulty)


def test_lines_about_short_memory_need_the_right_to_read_logs(seen: Console) -> None:
    job = running(seen)
    add_rank(job, 0, memory_mib=81_000)
    assert "No line about short memory" in page_of(job)
    with seen.units.begin(seen.fleet.tenant, protocol.LOGS, quiet=True) as unit:
        own: dict[str, Any] = {"attempt_id": job.newest.attempt.id, "node_id": job.host.node_id, "role": Role.ROOT}
        own |= {"host": "", "peer": "", "port": 0, "hca": "", "count": 3}
        own |= dict.fromkeys(("first_at", "last_at", "received_at"), unit.now)
        line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate <2 GiB>"
        unit.session.add(LineFindingRow(**own, key="a", pattern="cuda.out_of_memory", rank=0, text=line))
        unit.session.add(LineFindingRow(**own, key="b", pattern="nccl.ib_flushed", rank=0, text="other"))
    page = page_of(job)
    assert "3 times: torch.OutOfMemoryError" in page
    assert "out of memory" in page
    assert "<2 GiB>" not in seen.get(f"/console/jobs/{job.job_id}/debug", "tenant_member").text, "it is escaped"
    assert "3 lines" in page
    assert "Tried to allocate" not in page_of(job, actor="auditor")
