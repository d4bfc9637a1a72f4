"""A job's logs on its page: the end at once, what follows as a stream that ends with the job, the whole as a file."""

import html
import json
import re

import pytest

from tests.console.conftest import Console
from tests.console.played_job import SUCCESS, PlayedJob, played_job


@pytest.fixture
def job(seen: Console) -> PlayedJob:
    job = played_job(seen)
    job.start()
    job.prints("first of zero\n")
    job.prints("first of one\n", stream="1")
    job.prints("second of zero\n")
    return job


def frames(text: str) -> list[tuple[str, dict[str, str]]]:
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", text)
    return [(event, json.loads(data)) for event, data in found]


def test_the_page_shows_the_end_and_what_printed_it_without_scripts(seen: Console, job: PlayedJob) -> None:
    page = seen.text(f"/console/jobs/{job.job_id}", "tenant_member")
    assert f"rank 0 on {job.newest.hosts[0].node_name}, attempt 1 first of zero" in page
    attempt, node = job.newest.attempt.id, job.host.node_id
    page = seen.text(f"/console/jobs/{job.job_id}?log={attempt}/{node}/1", "tenant_member")
    assert "first of one" in page
    assert "first of zero" not in page


def test_the_stream_goes_on_behind_what_was_shown_and_ends_with_the_job(seen: Console, job: PlayedJob) -> None:
    job.ends(SUCCESS)
    told = frames(seen.get(f"/console/jobs/{job.job_id}/logs/follow").text)
    assert [event for event, _ in told] == ["log", "log", "log", "end"]
    assert [data["text"] for _, data in told[:3]] == ["first of zero\n", "first of one\n", "second of zero\n"]
    page = seen.get(f"/console/jobs/{job.job_id}").text
    (after,) = re.findall(r'data-after="(\d+)"', page)
    assert frames(seen.get(f"/console/jobs/{job.job_id}/logs/follow?after={after}").text) == [("end", {})]


def test_a_browser_that_lost_the_stream_goes_on_where_it_was(seen: Console, job: PlayedJob) -> None:
    job.ends(SUCCESS)
    text = seen.get(f"/console/jobs/{job.job_id}/logs/follow").text
    second = re.findall(r"id: (\d+)", text)[1]
    again = seen.get(f"/console/jobs/{job.job_id}/logs/follow", last_event_id=second).text
    assert [data["text"] for event, data in frames(again) if event == "log"] == ["second of zero\n"]


def test_the_whole_is_a_file_stream_by_stream_byte_by_byte(seen: Console, job: PlayedJob) -> None:
    job.prints("caf\xe9 ".encode("latin-1") + b"\x1b[31mred\x1b[0m", stream="1")
    answer = seen.get(f"/console/jobs/{job.job_id}/logs.txt", "tenant_member")
    assert answer.headers["content-disposition"] == f'attachment; filename="{job.job_id}.log.txt"'
    name = job.newest.hosts[0].node_name
    assert answer.content == (
        f"==> attempt 1, rank 0 on {name} <==\nfirst of zero\nsecond of zero\n"
        f"==> attempt 1, rank 1 on {name} <==\nfirst of one\n".encode()
        + b"caf\xe9 \x1b[31mred\x1b[0m\n"
    )
    one = seen.get(f"/console/jobs/{job.job_id}/logs.txt?log=//0", "tenant_member")
    assert one.content == b"first of zero\nsecond of zero\n"


def test_what_only_a_terminal_understands_is_left_out_of_the_page(seen: Console, job: PlayedJob) -> None:
    job.prints(b"\x1b[31mred\x1b[0m\r\n50%\r100%\n\x07\xff<b>\n")
    page = seen.get(f"/console/jobs/{job.job_id}").text
    assert "red\n50%\n100%\n��&lt;b&gt;" in page
    assert "\x1b" not in page


def test_only_the_end_of_a_long_log_is_on_the_page(seen: Console, job: PlayedJob) -> None:
    job.prints(b"early\n" + b"x" * 200_000)
    job.prints("late\n")
    page = seen.get(f"/console/jobs/{job.job_id}").text
    assert "late" in page
    assert "early" not in page


@pytest.mark.parametrize("choice", ["x", "att_1//", "//rank", "//0/1", "a" * 200])
def test_a_choice_that_is_none_is_refused_by_name(seen: Console, job: PlayedJob, choice: str) -> None:
    for path in ("", "/logs.txt", "/logs/follow"):
        answer = seen.get(f"/console/jobs/{job.job_id}{path}?log={choice}")
        assert answer.status_code == 422, path
        assert "log" in answer.text


def test_a_job_that_printed_nothing_reports_it(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    job.ends(SUCCESS)
    assert "Nothing was printed" in seen.text(f"/console/jobs/{job.job_id}")


def test_a_search_searches_all_of_it_and_states_whose_each_line_is(seen: Console, job: PlayedJob) -> None:
    job.prints(b"early <NaN>\n" + b"x" * 200_000 + b"\n")
    job.prints("nan of one\n", stream="1")
    name = job.newest.hosts[0].node_name
    page = seen.text(f"/console/jobs/{job.job_id}?find=nan", "tenant_member")
    assert "2 lines have it" in page
    assert f"rank 0 on {name}, attempt 1 early <NaN>" in page
    assert f"rank 1 on {name}, attempt 1 nan of one" in page
    assert "1 line has it" in seen.text(f"/console/jobs/{job.job_id}?find=nan&log=//1")
    assert "No line has it" in seen.text(f"/console/jobs/{job.job_id}?find=never")


def test_a_search_with_more_lines_than_a_page_goes_on_by_a_link(seen: Console, job: PlayedJob) -> None:
    job.prints("".join(f"nan {number};\n" for number in range(350)))
    page = seen.get(f"/console/jobs/{job.job_id}?find=nan").text
    (onward,) = re.findall(r'href="([^"]*find=nan[^"]*begin=[^"]*)"', page)
    page = seen.get(html.unescape(onward)).text
    assert "nan 200;" in page
    assert "nan 349;" in page
    assert "nan 199;" not in page
    assert "Look further" not in page


@pytest.mark.parametrize("begin", ["x", "att_x/node_x/0/0/0", "//0/0/0"])
def test_a_place_that_no_page_named_is_refused(seen: Console, job: PlayedJob, begin: str) -> None:
    assert seen.get(f"/console/jobs/{job.job_id}?find=nan&begin={begin}").status_code == 422
