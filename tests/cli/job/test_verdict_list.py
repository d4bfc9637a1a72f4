"""``muster verdict list`` asks for no more pages than it shows."""

import json
from pathlib import Path

from tests.cli.command import Command
from tests.recorded_server import Answer, serving


def test_older_pages_are_not_fetched(tmp_path: Path) -> None:
    def page(_requested: object, number: int) -> Answer:
        return Answer(200, {"items": [{"id": f"vrd_{number}"}], "next_cursor": "more"})

    with serving(page) as server:
        said = Command(tmp_path).run("verdict", "list", "--limit", "2", "--json", url=server.url)
    assert said.returncode == 0, said.stderr
    assert [each["id"] for each in json.loads(said.stdout)] == ["vrd_0", "vrd_1"]
    assert len(server.requested) == 2
