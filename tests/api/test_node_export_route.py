"""The export over the real API, page by page, and the command that writes it to a file."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.node import node_export, nodes
from muster.client.rest import RestClient
from tests.api.conftest import Api
from tests.api.test_telemetry import GPU, now_ms, post
from tests.telemetry_reports import reading, report, xid


def export(api: Api, node: str = "alpha", *, actor: str = "operator", status: int = 200, **query: str) -> list[object]:
    """All pages' records."""
    found, cursor = [], ""
    while True:
        more = {"cursor": cursor} if cursor else {}
        answer = api.client.get(f"/v1/nodes/{node}/export", params={**query, **more}, headers=api.headers(actor))
        assert answer.status_code == status, answer.text
        if status != 200:
            return [answer.json()["code"]]
        found += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
        if not cursor:
            return found


def test_an_auditor_reads_what_a_node_reported_and_a_tenant_does_not(api: Api) -> None:
    at = now_ms()
    assert post(api, report(16, at, reading(GPU, power_w=312.5), events=(xid("e", at),))).status_code == 200
    records = export(api, actor="auditor")
    kinds = [each["type"] for each in records]  # type: ignore[index]
    assert kinds[:2] == ["export", "fleet"]
    assert {"samples", "event", "gpu"} <= set(kinds)
    assert export(api, actor="tenant_admin", status=403) == ["forbidden"]
    assert export(api, "nobody", status=404) == ["not_found"]


@pytest.mark.parametrize(
    "query",
    [
        {"from": "yesterday"},
        {"from": "2026-01-01T00:00:00Z", "until": "2026-03-01T00:00:00Z"},
        {"from": "2026-11-02T00:00:00Z", "until": "2026-11-01T00:00:00Z"},
    ],
)
def test_a_time_that_is_no_span_is_a_problem(api: Api, query: dict[str, str]) -> None:
    assert export(api, status=422, **query) == ["validation_failed"]


def test_the_command_writes_a_file_that_is_whole_or_not_there(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = RestClient("http://127.0.0.1", "mst_x")
    client.close()
    client._http = api.client
    api.client.headers.update(api.headers("operator"))

    @contextmanager
    def opened(*, as_operator: bool) -> Iterator[RestClient]:
        assert as_operator
        yield client

    monkeypatch.setattr(node_export, "open_client", opened)
    out = tmp_path / "export" / "alpha.jsonl"
    out.parent.mkdir()
    done = CliRunner().invoke(nodes.app, ["export", "alpha", "--since", "2h", "--out", str(out)])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert lines[0]["type"] == "export"
    assert f"{len(lines)} records" in done.output
    again = CliRunner().invoke(nodes.app, ["export", "alpha", "--out", str(out)])
    assert isinstance(again.exception, CommandError)
    assert again.exception.code is Exit.CONFLICT
    assert [each.name for each in out.parent.iterdir()] == ["alpha.jsonl"]
    shown = CliRunner().invoke(nodes.app, ["export", "alpha", "--since", "1h"])
    assert json.loads(shown.output.splitlines()[0])["node_name"] == "alpha"
