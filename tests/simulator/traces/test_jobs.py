"""A trace's rows as jobs, and the errors for rows that are none."""

import pytest

from simulator.traces.jobs import TraceError, TraceJob, jobs_of, require_columns


def row(**columns: object) -> dict[str, object]:
    return {"submit_s": "0", "gpus": "1", "duration_s": "60", **columns}


@pytest.mark.parametrize(
    ("columns", "nodes", "each"),
    [
        ({"gpus": "1"}, 1, 1),
        ({"gpus": "7"}, 1, 7),
        ({"gpus": "8"}, 1, 8),
        ({"gpus": "12"}, 2, 8),
        ({"gpus": "64", "nodes": "8"}, 8, 8),
        ({"gpus": "8", "nodes": "4"}, 4, 2),
        ({"gpus": "12", "nodes": ""}, 2, 8),
    ],
)
def test_a_job_takes_a_part_of_one_node_whole_nodes_or_what_it_names(
    columns: dict[str, object], nodes: int, each: int
) -> None:
    (job,) = jobs_of([row(**columns)], num_nodes=16, gpus_per_node=8)
    assert (job.num_nodes, job.gpus_per_node) == (nodes, each)


def test_jobs_stand_by_submission_and_other_columns_are_passed_over() -> None:
    rows = [row(submit_s="20", vc="b", color="red"), row(submit_s="10", tenant="a", tier="spot")]
    assert jobs_of(rows, num_nodes=1, gpus_per_node=8, arrivals=0.5) == [
        TraceJob(5.0, 60.0, 1, 1, 1, "a", "spot"),
        TraceJob(10.0, 60.0, 1, 1, 1, "b", ""),
    ]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"submit_s": "-1"}, "row 2: submit_s='-1': must be seconds, from 0 to 10,000,000,000"),
        ({"duration_s": "1e308"}, "row 2: duration_s='1e308': must be seconds, from 0 to"),
        ({"submit_s": "1_0"}, "row 2: submit_s='1_0': must be seconds"),
        ({"duration_s": "\u0661"}, "row 2: duration_s='\u0661': must be seconds"),
        ({"submit_s": None}, "row 2: submit_s=nothing: must be seconds"),
        ({"duration_s": "nan"}, "row 2: duration_s='nan': must be seconds"),
        ({"duration_s": "inf"}, "row 2: duration_s='inf'"),
        ({"gpus": "0"}, "row 2: gpus='0': must be a whole number, from 1 to this fleet's 32"),
        ({"gpus": "9999999999"}, "row 2: gpus='9999999999': must be a whole number, from 1 to this fleet's 32"),
        ({"gpus": "1.5"}, "row 2: gpus='1.5'"),
        ({"gpus": "٣"}, "row 2: gpus='٣'"),
        ({"gpus": "x" * 100}, "x…: must be"),
        ({"nodes": "-2"}, "row 2: nodes='-2': must be a whole number, from 1 to this fleet's 4"),
        ({"gpus": "4", "nodes": "5"}, "row 2: nodes=5: must be no more than gpus=4"),
        ({"gpus": "9", "nodes": "1"}, "row 2: gpus=9 on nodes=1: a node of this fleet has 8 GPUs"),
        ({"gpus": "33"}, "row 2: gpus=33: takes 5 nodes, and this fleet has 4: 32 GPUs at most"),
        ({"tenant": "a\x1b[2J"}, r"row 2: tenant='a\x1b[2J': must be printable characters in one line"),
        ({"vc": "a\tb"}, r"row 2: vc='a\tb': must be printable"),
        ({"tier": "spot\n"}, r"row 2: tier='spot\n': must be printable"),
    ],
)
def test_a_row_that_is_no_job_is_named(columns: dict[str, object], words: str) -> None:
    with pytest.raises(TraceError) as caught:
        jobs_of([row(), row(**columns)], num_nodes=4, gpus_per_node=8)
    assert len(caught.value.faults) == 1
    assert words in str(caught.value)


def test_all_that_is_wrong_is_stated_at_once_and_counted_past_the_tenth() -> None:
    with pytest.raises(TraceError, match=r"and 15 more$") as caught:
        jobs_of([row(gpus="0")] * 25, num_nodes=1, gpus_per_node=8)
    assert len(caught.value.faults) == 25


def test_a_trace_without_jobs_or_without_a_column_is_none() -> None:
    with pytest.raises(TraceError, match="no row"):
        jobs_of([], num_nodes=1, gpus_per_node=8)
    with pytest.raises(TraceError, match="the header lacks gpus, duration_s"):
        require_columns(["submit_s"])
    with pytest.raises(TraceError, match="the header lacks submit_s"):
        require_columns(None)


def test_a_column_that_is_read_stands_once() -> None:
    columns = ["submit_s", "gpus", "duration_s", "color", "color", "", ""]
    require_columns(columns)
    with pytest.raises(TraceError, match="the header has gpus, tier twice: give each column once"):
        require_columns([*columns, "tier", "gpus", "tier"])
