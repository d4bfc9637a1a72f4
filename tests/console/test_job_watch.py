"""What the watch shows on a job's page: verdicts, ranks that stand out, lines about faults."""

import re
from typing import Any

import numpy as np
from sqlalchemy import event, select, text

from control.core.paging import Part
from control.jobs import jobs
from control.telemetry.node_readings import pack_readings
from control.watch import read
from muster.db.models import AllocationGpu, AttemptHost, AttemptTransport, NodeLatest, TrainingRank
from muster.domain.gpu.metrics import INDEX, NUM_METRICS
from tests.console.conftest import Console, words_of
from tests.console.played_job import PlayedJob, played_job

STRAGGLER = text(
    """
    INSERT INTO verdicts (id, attempt_id, job_id, tenant_id, kind, cause, ranks, node_id, gpu, phase, step, operation,
        evidence, sentence, reaction, state, created_at)
    SELECT 'vrd_z', attempt_id, job_id, tenant_id, 'straggler', 'host', '[5]', NULL, '', 'step', 40, '', '[]',
        'Rank 5 computes 50% longer.', 'none', 'standing', created_at
    FROM verdicts WHERE kind = 'hang'
    """
)
MANY_RANKS = text(
    """
    INSERT INTO training_ranks (attempt_id, rank, tenant_id, node_id, step_s, updated_at, pace)
    SELECT :attempt_id, rank, :tenant_id, 'n', 0.75, :at, CAST('{"own_s": 0.5, "wait_s": 0.25}' AS jsonb)
    FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS made (rank)
    """
)


def test_a_hang_is_named_on_the_page_with_its_stacks_and_dismissed_by_an_operator(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    job.stalls()
    where = f"/console/jobs/{job.job_id}"
    page = words_of(seen.get(where, "tenant_member").text)
    assert "Rank 1" in page
    assert "hang: stopped process, at step 12" in page
    assert "Rank 0 on" in page, "the stacks of all ranks are there"
    assert "forward /srv/train.py:7" in page
    assert "Dismiss" not in page, "a tenant cannot clear a host"
    with seen.units.begin(seen.fleet.tenant, read.READ, quiet=True) as unit:
        (verdict,) = read.list_verdicts(unit, read.VerdictFilter(job_id=job.job_id), Part(2))
    dismissal = f"{where}/verdicts/{verdict.id}/dismiss"
    assert seen.post(dismissal, "tenant_member", reason="x").status_code == 403
    assert seen.post(dismissal, "operator", reason="a debugger was attached").status_code == 303
    assert "Dismissed by" in words_of(seen.get(where, "tenant_member").text)


def test_a_verdict_stands_on_the_timeline_of_its_attempt_also_once_it_is_dismissed(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    where = f"/console/jobs/{job.job_id}"
    assert "Verdict " not in seen.text(where)
    job.stalls()
    (entry,) = re.findall(r"<li><b>Verdict</b> <span>(.*?)</span></li>", seen.get(where).text)
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3}: hang: Rank 1", words_of(entry))
    with seen.units.begin(seen.fleet.tenant, read.READ, quiet=True) as unit:
        (verdict,) = read.list_verdicts(unit, read.VerdictFilter(job_id=job.job_id), Part(2))
    assert seen.post(f"{where}/verdicts/{verdict.id}/dismiss", "operator", reason="a debugger").status_code == 303
    assert ": hang, dismissed: Rank 1" in seen.text(where)


def add_ranks(job: PlayedJob, number: int, slow: int | None = None) -> None:
    """Ranks of its newest attempt with a pace of their own."""
    attempt = job.newest.attempt
    with job.seen.units.begin(job.seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        for rank in range(number):
            pace = {"own_s": 0.75 if rank == slow else 0.5, "wait_s": 0.0 if rank == slow else 0.25}
            row: dict[str, Any] = {"attempt_id": attempt.id, "tenant_id": job.seen.fleet.tenant_id, "node_id": "n"}
            unit.session.add(TrainingRank(**row, rank=rank, step_s=0.75, pace=pace, updated_at=unit.now))


def test_a_rank_that_computes_longer_is_marked_in_the_grid_the_spread_and_the_table(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    where = f"/console/jobs/{job.job_id}"
    assert "Compute and wait by rank" not in seen.text(where), "no rank has reported a pace"
    add_ranks(job, 64, slow=7)
    page = seen.get(where).text
    assert page.count('class="rank"') == 63
    (odd,) = re.findall(r'<span class="rank rank--odd" title="([^"]*)">', page)
    assert odd == "rank 7: own compute 750 ms, 1.50 times the median; wait 0 ms, 0% of both; stands out"
    words = words_of(page)
    assert "Own compute 500 ms rank 0 500 ms 750 ms rank 7 rank 7, 1.50 times its peers'" in words
    assert "stands out: own compute, wait" in words
    assert "style=" not in page, "the policy for contents forbids it"
    tables = seen.get(f"{where}?part=tables", hx_request="true").text
    assert "Spread over ranks" in tables
    assert "Spread over ranks" not in seen.get(f"{where}?part=attempts", hx_request="true").text


def test_a_rank_on_which_a_verdict_stands_is_marked_and_the_stacks_of_a_hang_stay(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    job.stalls()
    add_ranks(job, 8)
    where = f"/console/jobs/{job.job_id}"
    assert 'class="rank rank--odd"' not in seen.get(where).text
    with seen.units.begin(seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        unit.session.execute(STRAGGLER)
    page = seen.get(where).text
    (odd,) = re.findall(r'<span class="rank rank--odd" title="(rank \d+)', page)
    assert odd == "rank 5"
    words = words_of(page)
    assert "stands out: a verdict" in words
    assert "forward /srv/train.py:7" in words, "the newest verdict has no stacks, and that of the hang has"
    with seen.units.begin(seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        unit.session.execute(text("UPDATE verdicts SET ended_at = now() WHERE kind = 'straggler'"))
    assert 'class="rank rank--odd"' not in seen.get(where).text, "it is slow no more"


def test_a_rank_whose_gpu_idles_is_marked_where_each_rank_has_a_gpu(seen: Console) -> None:
    job = played_job(seen, shape={"nodes": 2, "gpus_per_node": 2, "ranks_per_node": 2})
    job.start()
    attempt = job.newest.attempt
    other = next(host for host in job.hosts.values() if host is not job.host)
    assert other.claim(attempt.id, attempt.fence).granted
    other.report(attempt.id, attempt.fence, "started")
    add_ranks(job, 4)
    where = f"/console/jobs/{job.job_id}"
    assert 'class="rank rank--odd"' not in seen.get(where).text
    with seen.units.begin(seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        held = select(AllocationGpu.gpu_uuid, AllocationGpu.node_id, AllocationGpu.node_rank, AllocationGpu.local_index)
        found = [
            (node_id, 2 * node_rank + local, uuid) for uuid, node_id, node_rank, local in unit.session.execute(held)
        ]
        for node_id in {node_id for node_id, *_ in found}:
            of_node = sorted((uuid, rank) for at, rank, uuid in found if at == node_id)
            values = np.full((len(of_node), NUM_METRICS), np.nan)
            values[:, INDEX["utilisation_percent"]] = [40.0 if rank == 2 else 99.0 for _, rank in of_node]
            content = pack_readings([uuid for uuid, _ in of_node], values, [False] * len(of_node))
            latest = NodeLatest(node_id=node_id, boot_id="boot", at=unit.now, received_at=unit.now)
            latest.gpu_readings = content
            unit.session.add(latest)
    page = seen.get(where).text
    (odd,) = re.findall(r'<span class="rank rank--odd" title="(rank \d+)', page)
    assert odd == "rank 2"
    assert "stands out: GPU utilisation" in words_of(page)


def test_ranks_of_different_stages_are_not_compared(seen: Console) -> None:
    job = played_job(seen, shape={"gpus_per_node": 2, "ranks_per_node": 2}, layout={"pp": 2})
    job.start()
    with seen.units.begin(seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        ids: dict[str, Any] = {"attempt_id": job.newest.attempt.id, "tenant_id": seen.fleet.tenant_id, "node_id": "n"}
        for rank in range(8):
            pace = {"own_s": 0.25 if rank < 4 else 0.75, "wait_s": 0.1, "place": f"data ranks of {rank // 4 * 4}"}
            unit.session.add(TrainingRank(**ids, rank=rank, step_s=1.0, pace=pace, updated_at=unit.now))
    page = seen.get(f"/console/jobs/{job.job_id}").text
    assert page.count('class="rank"') == 8
    assert 'class="rank rank--odd"' not in page


def test_a_wide_job_takes_no_more_statements_and_a_bounded_number_of_cells(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    where = f"/console/jobs/{job.job_id}?part=tables"
    said: list[str] = []
    event.listen(seen.units.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    counts, page = [], ""
    for first, number in ((0, 2), (2, 2_000)):
        with seen.units.begin(seen.fleet.tenant, jobs.READ, quiet=True) as unit:
            rows = {"attempt_id": job.newest.attempt.id, "tenant_id": seen.fleet.tenant_id, "at": unit.now}
            unit.session.execute(MANY_RANKS, {**rows, "first": first, "last": first + number - 1})
        said.clear()
        page = seen.get(where, hx_request="true").text
        counts.append(len(said))
    assert counts[0] == counts[1]
    assert page.count('class="rank"') == 1_001
    assert "a cell shows the slowest of 2 neighbours" in words_of(page)


def test_lines_about_faults_are_a_card_that_the_page_requests(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    where = f"/console/jobs/{job.job_id}"
    attempt = job.newest.attempt
    with seen.units.begin(seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        node_id = unit.session.scalars(select(AttemptHost.node_id).limit(1)).one()
        row: dict[str, Any] = {"attempt_id": attempt.id, "transport": "socket", "cards": ["eth0"], "warning": None}
        unit.session.add(AttemptTransport(**row, node_id=node_id, received_at=unit.now))
    page = seen.get(where).text
    assert f'hx-get="{where}/fault-lines" hx-trigger="load' in page
    assert "Between hosts NCCL uses" not in page
    assert "Between hosts NCCL uses socket (eth0)" in seen.get(f"{where}/fault-lines", hx_request="true").text
