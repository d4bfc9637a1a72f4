"""Indicators as callers and the command see them."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from control.ledger.figure_hours import count_once
from ledger.figures.indicators import INDICATORS
from muster.cli.fleet import figures
from muster.cli.framework.exits import CommandError
from muster.client.rest import RestClient
from tests.api.conftest import Api
from tests.control.conftest import SetClock
from tests.control.ledger.figure_case import Lived

Type = Callable[..., str]
HOUR = "2026-11-21T04:00:00Z"
UNTIL = "2026-11-21T05:00:00Z"


@pytest.fixture
def api_clock() -> SetClock:
    return SetClock()


@pytest.fixture
def lived(api: Api, api_clock: SetClock) -> Lived:
    """Two jobs of one tenant and one of another, counted."""
    lived = Lived(api.units, api_clock, api.fleet)
    lived.begin = api_clock.now = datetime(2026, 11, 21, 4, tzinfo=UTC)
    (attempt_id,) = lived.job("SUCCEEDED", (0, 10, "succeeded"), ended=10, tier="spot")
    lived.steps(attempt_id, 5, 1.0, 2.0, 3.0)
    lived.job("FAILED", (0, 10, "gpu_fault"), ended=10)
    lived.job("FAILED", (0, 10, "user_error"), ended=10, tenant_id=api.other_tenant)
    api_clock.advance(66 * 60)
    while count_once(api.units):
        pass
    return lived


def got(api: Api, path: str, actor: str = "operator", **query: Any) -> Any:
    answer = api.client.get(f"/v1/figures{path}", headers=api.headers(actor), params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_definition_is_listed(api: Api) -> None:
    listed = got(api, "", "tenant_member")["items"]
    assert [each["name"] for each in listed] == list(INDICATORS)


def test_a_figure_is_shown_by_hour_with_its_parts(api: Api, lived: Lived) -> None:
    found = got(api, "/job_success", since=HOUR, until=UNTIL)
    (series,) = found["series"]
    assert series["value"] == pytest.approx(1 / 3)
    assert {part["part"]: part["num"] for part in series["parts"]} == {"succeeded": 1, "own": 1, "infrastructure": 1}
    assert [point["begins_at"] for point in series["points"]] == [HOUR]
    assert found["final_until"] == HOUR
    del lived


def test_percentiles_are_as_requested(api: Api, lived: Lived) -> None:
    (series,) = got(api, "/step_time", since=HOUR, until=UNTIL, percentile=[0, 50, 100])["series"]
    assert [each["value"] for each in series["percentiles"]] == pytest.approx([1.0, 2.0, 3.0], rel=0.01)
    (usual,) = got(api, "/step_time", since=HOUR, until=UNTIL)["series"]
    assert [each["percentile"] for each in usual["percentiles"]] == [50, 95, 99]
    del lived


def test_groups_and_tenants(api: Api, lived: Lived) -> None:
    by_tier = got(api, "/job_success", since=HOUR, until=UNTIL, by="tier")["series"]
    assert {each["group"]: each["value"] for each in by_tier} == {"standard": 0.0, "spot": 1.0}
    own = got(api, "/job_success", "tenant_member", since=HOUR, until=UNTIL, by="tenant")["series"]
    assert [(each["group"], each["value"]) for each in own] == [(lived.fleet.tenant_id, 0.5)]


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/no_such", {}, 404),
        ("/step_time", {"since": UNTIL, "until": HOUR}, 422),
        ("/step_time", {"since": "yesterday"}, 422),
        ("/step_time", {"until": "9999-12-31T23:59:59Z"}, 422),
        ("/step_time", {"until": "0001-01-01T00:00:00Z"}, 422),
        ("/step_time", {"by": "mood"}, 422),
        ("/step_time", {"percentile": 101}, 422),
        ("/step_time", {"since": "2020-01-01T00:00:00Z", "until": HOUR}, 422),
    ],
)
def test_bad_questions_are_refused(api: Api, path: str, query: dict[str, Any], status: int) -> None:
    answer = api.client.get(f"/v1/figures{path}", headers=api.headers("operator"), params=query)
    assert answer.status_code == status


@pytest.fixture
def command(api: Api, lived: Lived, monkeypatch: pytest.MonkeyPatch) -> Type:
    """Return a function that types ``muster figures`` with a tenant's key and returns its output."""
    client = RestClient("http://127.0.0.1", "mst_x")
    client.close()
    client._http = api.client  # the same requests, into the application
    api.client.headers.update(api.headers("tenant_member"))
    app = typer.Typer()
    app.command()(figures.figures)
    del lived

    @contextmanager
    def opened() -> Iterator[RestClient]:
        yield client

    monkeypatch.setattr(figures, "open_client", opened)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, list(words))
        if isinstance(result.exception, CommandError):
            return str(result.exception)
        assert result.exit_code == 0, result.output
        assert {"--csv", "--json"} & set(words) or all(len(line) <= 80 for line in result.stdout.splitlines()), (
            result.stdout
        )
        return result.stdout

    return run


def test_the_command_lists_and_shows(command: Type) -> None:
    listed = command()
    assert all(name in listed for name in INDICATORS)
    shown = command("job_success", "--since", HOUR, "--until", UNTIL)
    assert "50.00%" in shown
    assert "infrastructure" in shown
    assert "higher is better" in shown
    grouped = command("job_success", "--since", HOUR, "--until", UNTIL, "--by", "tier")
    assert "spot" in grouped
    assert "P95" in command("step_time", "--since", HOUR, "--until", UNTIL)
    for unseen in ("cost_per_epoch", "save_time"):
        assert "Nothing was counted" in command(unseen, "--since", HOUR, "--until", UNTIL)


def test_the_command_gives_json_and_csv(command: Type) -> None:
    found = json.loads(command("step_time", "--since", HOUR, "--until", UNTIL, "--json"))
    assert found["series"][0]["value"] == pytest.approx(2.0)
    rows = list(csv.DictReader(io.StringIO(command("step_time", "--since", HOUR, "--until", UNTIL, "--csv"))))
    assert [(row["part"], row["begins_at"]) for row in rows] == [("", HOUR), ("steps", HOUR)]
    assert float(rows[0]["value"]) == pytest.approx(2.0)
    assert rows[1]["num"] == "3"
    assert float(rows[1]["total"]) == pytest.approx(6.0)
    assert float(rows[0]["p50"]) == pytest.approx(2.0, rel=0.01)
    assert "one figure" in command("--csv")
