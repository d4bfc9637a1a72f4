"""The charts on a job's page: loss, times of each rank, readings of its GPUs."""

import re

from control.telemetry.intake import Intake, IntakeLimits
from control.telemetry.reports import IncomingReport, Outcome
from muster.domain.times import to_ms
from tests.console.conftest import Console
from tests.console.played_job import SUCCESS, played_job, struck
from tests.telemetry_reports import reading, report
from tests.waiting import wait_until


def test_the_charts_get_a_line_an_attempt_and_marks_where_something_changed(seen: Console) -> None:
    job = struck(seen)
    document = seen.get(f"/console/jobs/{job.job_id}/training.json").json()
    loss = next(chart for chart in document["charts"] if chart["title"] == "Loss")
    assert [line["name"] for line in loss["lines"]] == ["attempt 1", "attempt 2"]
    assert [line["is_past"] for line in loss["lines"]] == [True, False]
    assert loss["lines"][0]["points"][0] == [1, 4.0]
    assert loss["lines"][1]["points"][-1] == [20, 0.2]
    marks = {(mark["kind"], mark["at"]) for mark in loss["marks"]}
    assert {("change", 11), ("bad", 30)} <= marks
    assert document["refresh_s"] == 5
    job.ends(SUCCESS)
    assert seen.get(f"/console/jobs/{job.job_id}/training.json").json()["refresh_s"] is None


def test_the_spread_of_step_times_has_its_percentiles(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    job.states({"type": "step", "step": 1, "loss": 1.0, "step_s": 60.0})
    job.trains(2, 96)
    job.states(*({"type": "step", "step": step, "loss": 1.0, "step_s": 2.0} for step in range(97, 102)))
    document = seen.get(f"/console/jobs/{job.job_id}/training.json").json()
    [spread] = [chart for chart in document["charts"] if chart["title"] == "Step times"]
    assert spread["note"] == (
        "The newest 100 steps: p50 250 ms, p95 337.5 ms, p99 2000 ms; the last class has all longer ones."
    ), "without the first, which compiles"
    [bars] = spread["lines"]
    assert (bars["points"][0], bars["points"][-1][1]) == ([250.0, 95], 5)
    assert sum(number for _, number in bars["points"]) == 100


def test_times_that_no_classes_can_divide_have_no_spread(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    job.states(*({"type": "step", "step": n, "loss": 1.0, "step_s": 5e-324 * (n % 2)} for n in range(1, 60)))
    document = seen.get(f"/console/jobs/{job.job_id}/training.json").json()
    assert "Step times" not in {chart["title"] for chart in document["charts"]}


def test_each_rank_has_a_line_of_its_own(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    job.trains(1, 500)
    job.states({"type": "step", "step": 500, "loss": 9.0, "step_s": 7.5}, rank=1)
    document = seen.get(f"/console/jobs/{job.job_id}/training.json").json()
    charts = {chart["title"]: chart["lines"] for chart in document["charts"]}
    zero, one = charts["Step time of each rank"]
    assert (zero["name"], one["name"]) == ("rank 0", "rank 1")
    assert (zero["points"][0], one["points"]) == ([1, 0.25], [[500, 7.5]])
    assert 60 <= len(zero["points"]) <= 128
    assert charts["Loss of each rank"][1]["points"] == [[500, 9.0]]


def test_where_the_time_of_a_step_goes_is_reported_for_all_ranks_and_drawn_for_the_first(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    assert "Where a step" not in seen.get(f"/console/jobs/{job.job_id}").text, "no rank reported it"
    job.trains(1, 300)
    job.paces(*range(10, 301, 10), collective_s=0.25, tokens_per_s=1000.0)
    job.paces(300, rank=1, collective_s=0.75, tokens_per_s=500.0)
    page = seen.get(f"/console/jobs/{job.job_id}").text
    for expected in ("Where a step", "500 ms", "1,500", "exchanging gradients with the other ranks"):
        assert expected in page
    charts = seen.get(f"/console/jobs/{job.job_id}/training.json").json()["charts"]
    found = {chart["title"]: chart["lines"] for chart in charts}
    lines = {line["name"]: line["points"] for line in found["Where a step's time goes"]}
    assert set(lines) == {"forward", "collective"}, "parts that take no time are not drawn"
    assert lines["collective"][0] == [10, 0.25]
    assert lines["collective"][-1] == [300, 0.25]
    assert found["Tokens a second, rank 0"][0]["points"][-1] == [300, 1000.0]
    assert found["Memory, rank 0"] == [{"name": "memory, rank 0", "points": []}]


def test_a_long_curve_is_thinned_and_keeps_its_ends(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    for first in range(1, 4_001, 100):
        job.trains(first, first + 99)
    document = seen.get(f"/console/jobs/{job.job_id}/training.json").json()
    points = document["charts"][0]["lines"][0]["points"]
    assert (points[0][0], points[-1][0]) == (1, 4_000)
    assert 500 < len(points) <= 1_700


def test_a_program_that_reports_its_mfu_and_no_hfu_has_a_page(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    job.paces(1, mfu=0.5)
    job.paces(1, rank=1, mfu=0.5)
    page = seen.text(f"/console/jobs/{job.job_id}")
    assert "50.0 %" in page
    assert "HFU" not in page


def test_the_charts_over_time_have_the_steps_and_each_gpu(seen: Console) -> None:
    job = played_job(seen)
    where = f"/console/jobs/{job.job_id}/readings.json"
    assert seen.get(where).json() == {"charts": [], "refresh_s": 15}, "it has not run"
    job.start()
    job.trains(1, 5)
    gpus = [reading(uuid, power_w=300.0, sm_clock_mhz=1980.0) for uuid in job.newest.hosts[0].gpus]
    intake = Intake(seen.units, limits=IntakeLimits(pause_s=0.001))
    outcomes: list[Outcome] = []
    at_ms = to_ms(seen.units.clock()) + 1_000
    node_id = job.newest.hosts[0].part.node_id
    intake.submit(IncomingReport(node_id, None, report(16, at_ms, *gpus), at_ms), outcomes.append)
    wait_until(lambda: bool(outcomes))
    intake.close()
    wait_until(lambda: bool(seen.get(where).json()["charts"]))
    charts = {chart["title"]: chart for chart in seen.get(where, "tenant_member").json()["charts"]}
    assert list(charts) == ["Step time, rank 0", "SM clock", "Temperature", "Power", "Utilisation"]
    power = charts["Power"]
    assert (power["x"], power["unit"], power["range"]) == ("time", "W", charts["Step time, rank 0"]["range"])
    assert [line["name"].partition(", ")[2] for line in power["lines"]] == ["GPU 0", "GPU 1"]
    assert [[point[1] for point in line["points"]] for line in power["lines"]] == [[300.0], [300.0]]
    assert len(charts["Step time, rank 0"]["lines"][0]["points"]) == 5
    assert "Tensor cores active" not in seen.text(f"/console/gpus/{job.newest.hosts[0].gpus[0]}")
    assert "NVLink" not in seen.text(f"/console/gpus/{job.newest.hosts[0].gpus[0]}")
    job.stalls()
    (mark,) = next(iter(seen.get(where).json()["charts"]))["marks"]
    assert mark["label"] == "✕ hang"


def test_what_many_gpus_lack_is_shown_where_it_is_reported(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    first, second = job.newest.hosts[0].gpus
    where = f"/console/jobs/{job.job_id}/readings.json"
    links = {"nvlink_sent_bytes_per_s": 25e9, "nvlink_received_bytes_per_s": 3e9}
    gpus = (reading(first, power_w=300.0, tensor_active_percent=37.5, **links), reading(second, power_w=300.0))
    intake = Intake(seen.units, limits=IntakeLimits(pause_s=0.001))
    outcomes: list[Outcome] = []
    at_ms = to_ms(seen.units.clock()) + 1_000
    intake.submit(
        IncomingReport(job.newest.hosts[0].part.node_id, None, report(16, at_ms, *gpus), at_ms), outcomes.append
    )
    wait_until(lambda: bool(outcomes))
    intake.close()
    wait_until(lambda: bool(seen.get(where).json()["charts"]))
    *_, tensor, sent, received = seen.get(where).json()["charts"]
    drawn = [(chart["title"], chart["unit"], chart["lines"][0]["points"][0][1]) for chart in (sent, received)]
    assert drawn == [("NVLink sent", "GB/s", 25.0), ("NVLink received", "GB/s", 3.0)]
    assert (tensor["title"], tensor["unit"]) == ("Tensor cores active", "%")
    assert [[point[1] for point in line["points"]] for line in tensor["lines"]] == [[37.5], []]
    page = seen.text(f"/console/gpus/{first}")
    assert re.search(r"Tensor cores active\D*38 %", page)
    assert re.search(r"NVLink sent\D*25 GB/s", page)
