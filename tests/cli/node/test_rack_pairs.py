"""``muster node rack-pairs``: loss and round trips as a person reads them."""

from pathlib import Path
from typing import Any

from tests.cli.command import Command
from tests.recorded_server import Answer, serving

SLOW: dict[str, Any] = {
    "rack": "r1",
    "other_rack": "r2",
    "num_pairs": 3,
    "num_sent": 1200,
    "num_lost": 15,
    "lost_share": 0.0125,
    "round_trip_p50_us": 84.4,
    "round_trip_p99_us": 6210.0,
    "worst_node": "gpu-01",
    "worst_peer": "gpu-09",
}
DEAD = SLOW | {"rack": None, "lost_share": 1.0, "round_trip_p50_us": None, "round_trip_p99_us": None}


def test_racks_are_shown_with_shares_and_units(tmp_path: Path) -> None:
    document = {"items": [DEAD, SLOW], "next_cursor": None}
    with serving(lambda _asked, _number: Answer(200, document)) as server:
        shown = Command(tmp_path).run("node", "rack-pairs", "--hours", "6", url=server.url, COLUMNS="120")
    assert shown.returncode == 0, shown.stderr
    assert server.requested[0].path == "/v1/rack-pairs?hours=6&limit=200"
    _, dead, slow = shown.stdout.splitlines()
    assert dead.split()[:2] == ["not", "known"]
    assert "100.00%" in dead
    assert slow.split() == ["r1", "r2", "3", "1200", "1.25%", "84", "µs", "6.2", "ms", "gpu-01", "to", "gpu-09"]


def test_where_none_probes_it_states_how_to_turn_it_on(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: Answer(200, {"items": [], "next_cursor": None})) as server:
        shown = Command(tmp_path).run("node", "rack-pairs", url=server.url)
    assert "pair_probe_port" in shown.stdout
