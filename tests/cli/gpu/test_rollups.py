"""``muster gpu rollup``: groups as a person reads them, and as a spreadsheet does."""

import csv
import json
from pathlib import Path
from typing import Any

from tests.cli.command import Command
from tests.recorded_server import Answer, serving

R1: dict[str, Any] = {
    "at": "2026-11-28T10:00:04Z",
    "by": "rack",
    "key": "r1",
    "name": "r1",
    "score": 87.5,
    "worst": 0,
    "p10": 60,
    "mean": 91.2,
    "num_nodes": 8,
    "num_gpus": 64,
    "standings": {"HEALTHY": 60, "QUARANTINED": 4},
    "num_healthy": 60,
    "num_admitted": 60,
    "num_in_use": 40,
    "num_reserved": 8,
    "num_free": 12,
    "num_out": 4,
}
OTHERS = R1 | {"key": None, "name": None, "score": 100.0, "standings": {"HEALTHY": 64}}


def pages(*items: dict[str, Any]) -> Answer:
    return Answer(200, {"items": list(items), "next_cursor": None})


def test_groups_are_shown_with_score_and_capacity(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: pages(R1, OTHERS)) as server:
        shown = Command(tmp_path).run("gpu", "rollup", url=server.url, COLUMNS="120")
    assert shown.returncode == 0, shown.stderr
    assert server.requested[0].path == "/v1/health/rollups?by=rack&limit=200"
    head, first, second, as_of = shown.stdout.splitlines()
    assert head.split()[:6] == ["RACK", "SCORE", "WORST", "P10", "MEAN", "GPUS"]
    assert first.split() == ["r1", "87.5", "0", "60", "91.2", "64", "60", "40", "8", "12", "4"]
    assert second.split()[:3] == ["no", "rack", "100.0"]
    assert as_of == "as of 2026-11-28T10:00:04Z"


def test_history_is_a_stretch_with_the_time_of_each_round(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: pages(R1)) as server:
        shown = Command(tmp_path).run(
            *("gpu", "rollup", "--by", "fleet", "--history", "--step", "1d", "--group", "a b"),
            *("--since", "2026-11-01T00:00:00Z"),
            url=server.url,
            COLUMNS="120",
        )
    assert shown.returncode == 0, shown.stderr
    path = server.requested[0].path
    assert "by=fleet" in path
    assert "step=day" in path
    assert "group=a" in path
    assert "since=2026-11-01T00" in path
    assert shown.stdout.splitlines()[1].split()[0] == "2026-11-28T10:00:04Z"


def test_as_csv_there_is_a_column_a_field_and_a_standing(tmp_path: Path) -> None:
    odd = R1 | {"key": "=1+1", "name": 'a "b", c'}
    with serving(lambda _asked, _number: pages(odd, OTHERS)) as server:
        shown = Command(tmp_path).run("gpu", "rollup", "--csv", url=server.url)
    first, second = csv.DictReader(shown.stdout.splitlines())
    assert (first["key"], first["name"]) == ("'=1+1", 'a "b", c'), "no formula"
    assert (first["standings.HEALTHY"], first["standings.QUARANTINED"]) == ("60", "4")
    assert (second["key"], second["standings.QUARANTINED"], second["score"]) == ("", "", "100.0")
    assert list(first)[:4] == ["at", "by", "key", "name"]


def test_without_a_group_the_sheet_has_its_header_and_the_table_a_reason(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: pages()) as server:
        sheet = Command(tmp_path).run("gpu", "rollup", "--csv", url=server.url)
        table = Command(tmp_path).run("gpu", "rollup", url=server.url)
    assert sheet.stdout.startswith("at,by,key,name,score,")
    assert "every five minutes" in table.stdout


def test_the_output_names_that_groups_are_left_out(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: pages(R1, OTHERS)) as server:
        table = Command(tmp_path).run("gpu", "rollup", "--limit", "1", url=server.url)
        sheet = Command(tmp_path).run("gpu", "rollup", "--limit", "1", "--csv", url=server.url)
        whole = Command(tmp_path).run("gpu", "rollup", "--json", url=server.url)
    assert "The first 1; --limit shows more." in table.stdout
    assert "The first 1" in sheet.stderr
    assert len(sheet.stdout.splitlines()) == 2
    assert json.loads(whole.stdout)[0] == R1


def test_formats_and_times_that_exclude_each_other_are_refused_by_name(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: pages(R1)) as server:
        both = Command(tmp_path).run("gpu", "rollup", "--csv", "--json", url=server.url)
        times = Command(tmp_path).run("gpu", "rollup", "--at", "1d", "--history", url=server.url)
    assert both.returncode == times.returncode == 2
    assert "--csv" in both.stderr
    assert "--at" in times.stderr
