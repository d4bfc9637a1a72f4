"""``muster health replay``: records in, what the rules would have done out; and each bad line by its number."""

import json
from pathlib import Path
from typing import Any

import pytest

from muster.cli.framework.exits import Exit
from muster.domain.gpu.metrics import INDEX, NUM_METRICS, SCHEMA
from tests import telemetry_of_0_1_0
from tests.cli.command import Command

AT = 1_790_000_000_000


def report(seq: int, *, errors: float, events: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    values: list[float | None] = [None] * NUM_METRICS
    values[INDEX["ecc_uncorrected_volatile"]] = errors
    return {
        "node_id": "gpu-01",
        "protocol": 1,
        "boot_id": "boot-1",
        "seq": seq,
        "at_ms": AT + seq * 10_000,
        "schema": SCHEMA,
        "gpus": [{"uuid": "GPU-a", "values": values}],
        "events": list(events),
    }


XID = {
    "event_id": "boot-1:1",
    "kind": "xid",
    "source": "kernel_log",
    "at_ms": AT + 20_000,
    "gpu_uuid": "GPU-a",
    "code": 95,
}
RECORDS = [
    {"type": "gpu", "gpu_uuid": "GPU-a", "node_id": "gpu-01", "standing": "HEALTHY", "at_ms": AT},
    report(1, errors=0),
    report(2, errors=1, events=(XID,)),
    {**XID, "node_id": "gpu-01", "type": "event"},
    {"type": "burn_in", "gpu_uuid": "GPU-a", "began_ms": AT + 60_000, "ended_ms": AT + 90_000, "has_passed": True},
    {"type": "time", "at_ms": AT + 100_000},
]


def written(folder: Path, *records: object) -> str:
    file = folder / "records.jsonl"
    file.write_text("\n".join(json.dumps(each) for each in records) + "\n\n", encoding="utf-8")
    return str(file)


def test_raw_reports_become_evidence_scores_and_moves(muster: Command, tmp_path: Path) -> None:
    said = muster.run("health", "replay", written(tmp_path, *RECORDS), "--json")
    assert said.returncode == Exit.OK, said.stderr
    found = [json.loads(line) for line in said.stdout.splitlines()]
    evidence = [(each["what"], each["fault"], each["sources"]) for each in found if each["type"] == "evidence"]
    assert evidence == [("new", "ecc_uncorrected", ["nvml"]), ("joined", "ecc_uncorrected", ["nvml", "kernel_log"])]
    moves = [(each["from"], each["to"], each["reason"]) for each in found if each["type"] == "move"]
    assert moves == [("HEALTHY", "QUARANTINED", "condemned"), ("QUARANTINED", "PROBATION", "burn_in_passed")]
    assert [each["score"] for each in found if each["type"] == "score"] == [0.0, 100.0]


def test_time_may_pass_after_the_last_record_and_a_policy_may_be_tried(muster: Command, tmp_path: Path) -> None:
    file = written(tmp_path, *RECORDS)
    assert "PROBATION → HEALTHY" in muster.run("health", "replay", file, "--until", "60d").stdout
    quick = tmp_path / "policy.yaml"
    quick.write_text("health:\n  standing:\n    probation_s: 7200\n    reclaimable_only_s: 60\n", encoding="utf-8")
    tried = muster.run("health", "replay", file, "--until", "3h", "--policy", str(quick))
    assert (tried.returncode, "PROBATION → HEALTHY" in tried.stdout) == (Exit.OK, True), tried.stderr
    for odd in ("2026-01-01: 1\n", "a: &a [*a]\n", "a: " + "[" * 3000 + "\n"):
        quick.write_text(odd, encoding="utf-8")
        said = muster.run("health", "replay", file, "--policy", str(quick))
        assert (said.returncode, "fault in Muster" in said.stderr) == (Exit.INVALID, False), said.stderr
    quick.write_text("health:\n  score: 120%\nmore: 1\n", encoding="utf-8")
    refused = muster.run("health", "replay", file, "--policy", str(quick))
    assert refused.returncode == Exit.INVALID
    assert {"health.score", "more"} <= {word.strip(":;") for word in refused.stderr.split()}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{half", "no JSON"),
        ("7", "wanted is an object"),
        ('{"type": "dream"}', "accepted are report, event, gpu, fleet, sample, samples, burn_in, breaker_closed"),
        ('{"type": "sample", "gpu_uuid": "a", "at_ms": 1, "values": {"hope": 1}}', "values.hope"),
        ('{"type": "sample", "gpu_uuid": "a", "at_ms": "soon"}', "at_ms"),
        ('{"type": "burn_in", "gpu_uuid": "a", "began_ms": 9, "ended_ms": 1, "has_passed": true}', "ended_ms"),
        ('{"type": "gpu", "gpu_uuid": "a", "standing": "FINE", "at_ms": 1}', "standing"),
        ('{"kind": "xid", "at_ms": 1, "code": -1}', "code"),
        ('{"type": "sample", "gpu_uuid": "GPU-\\ud800", "at_ms": 1}', "half a character"),
        ('{"kind": "xid", "at_ms": 1, "code": 31, "node_id": 7}', "node_id"),
        ('{"boot_id": "b", "gpus": [{"uuid": "a", "values": [1]}]}', "values"),
    ],
)
def test_a_bad_line_is_named_by_its_number(muster: Command, tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(RECORDS[0]) + "\n" + line + "\n", encoding="utf-8")
    said = muster.run("health", "replay", str(file))
    assert said.returncode == Exit.INVALID
    assert "line 2" in said.stderr
    assert words in " ".join(said.stderr.split())
    assert "Traceback" not in said.stderr


def test_a_policy_is_checked_without_a_server(muster: Command, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("contact:\n  heartbeat_s: 5%\nextras: 1\n", encoding="utf-8")
    bad = muster.run("policy", "check", str(file), "--offline", "--json")
    assert bad.returncode == Exit.INVALID
    assert {each["pointer"] for each in json.loads(bad.stdout)["errors"]} == {"/contact/heartbeat_s", "/extras"}
    file.write_text("contact:\n  heartbeat_jitter_fraction: 0.2\n", encoding="utf-8")
    good = muster.run("policy", "check", str(file))  # none is named
    assert (good.returncode, "one value changes" in good.stdout) == (Exit.OK, True), good.stdout + good.stderr


def test_the_policy_for_production_is_checked_without_a_server(muster: Command) -> None:
    said = muster.run("policy", "check", str(Path(__file__).parents[3] / "policy" / "production.yaml"), "--offline")
    assert said.returncode == Exit.OK, said.stderr
    for path in ("/dispatch/preflight_from_nodes", "/tiers/spot/quick_check_s", "/recovery/spares/confidence"):
        assert path in said.stdout


def test_a_maintenance_window_is_a_record(muster: Command, tmp_path: Path) -> None:
    window = {"type": "maintenance", "node_id": "gpu-01", "at_ms": AT, "until_ms": AT + 3_600_000}
    said = muster.run("health", "replay", written(tmp_path, RECORDS[0], window, *RECORDS[1:3]), "--json")
    assert said.returncode == Exit.OK, said.stderr
    assert {json.loads(line)["type"] for line in said.stdout.splitlines()} == {"evidence"}, "kept, and nothing moves"
    said = muster.run("health", "replay", written(tmp_path, {**window, "until_ms": AT}))
    assert (said.returncode, "until_ms" in said.stderr) == (Exit.INVALID, True)


def reported_by(muster: Command, *words: str) -> list[dict[str, Any]]:
    said = muster.run("health", "replay", *words, "--json")
    assert said.returncode == Exit.OK, said.stderr
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_what_persons_did_is_played_and_what_does_not_go_is_reported(muster: Command, tmp_path: Path) -> None:
    about = {"gpu_uuid": "GPU-a", "node_id": "gpu-01", "by": "ann", "reason": "inspected"}
    repair = {**about, "fault_group": "memory"}
    acts = (
        {**about, "type": "override", "standing": "SUSPECT", "at_ms": AT + 25_000, "until_ms": AT + 30_000},
        {**repair, "type": "repair_began", "action": "swap", "at_ms": AT + 30_000},
        {**repair, "type": "repair_ended", "outcome": "done", "began_ms": AT + 30_000, "at_ms": AT + 40_000},
        {**repair, "type": "repair_began", "action": "swap", "at_ms": AT + 50_000},
        {**about, "type": "person_moved", "to": "RETIRED", "at_ms": AT + 60_000},
    )
    found = reported_by(muster, written(tmp_path, *RECORDS[:4], *acts))
    moves = [(each["from"], each["to"], each["reason"]) for each in found if each["type"] == "move"]
    assert moves == [
        ("HEALTHY", "QUARANTINED", "condemned"),
        ("QUARANTINED", "REPAIR", "repair_started"),
        ("REPAIR", "UNPROVEN", "repair_done"),
        ("UNPROVEN", "RETIRED", "retired"),
    ]
    (unmet,) = (each for each in found if each["type"] == "unmet")
    assert unmet["words"] == "GPU-a is UNPROVEN: quarantine it before its repair"
    (override,) = (each for each in found if each["type"] == "override")
    assert (override["standing"], override["by"]) == ("SUSPECT", "ann")


@pytest.mark.parametrize(("words", "num_moves"), [((), 1), (("--fleet", "100000"), 3)])
def test_the_fleet_that_the_records_are_a_part_of_may_be_reported(
    muster: Command, tmp_path: Path, words: tuple[str, ...], num_moves: int
) -> None:
    events = [
        {"kind": "xid", "code": 95, "gpu_uuid": f"GPU-{name}", "node_id": "gpu-01", "at_ms": AT, "event_id": name}
        for name in "abc"
    ]
    policy = tmp_path / "policy.yaml"
    policy.write_text("health: {breaker: {fleet_floor: 1, fleet_window_floor: 1}}\n", encoding="utf-8")
    found = reported_by(muster, written(tmp_path, *events), "--policy", str(policy), *words)
    made = [each for each in found if each["type"] == "move" and not each["is_held_back"]]
    assert len(made) == num_moves


def test_readings_that_are_no_numbers_are_set_aside_and_counted(muster: Command, tmp_path: Path) -> None:
    odd = report(3, errors=float("nan"), events=({**XID, "event_id": "odd", "code": 79, "values": {"gpc": "x"}},))
    sample = {"type": "sample", "gpu_uuid": "GPU-a", "node_id": "gpu-01", "at_ms": AT, "values": {"power_w": "much"}}
    file = written(tmp_path, RECORDS[0], sample, odd, report(4, errors=0.0))
    found = reported_by(muster, file)
    assert found[-1] == {"type": "set_aside", "samples": 2, "values": 1, "num_lines": 2, "lines": [2, 3]}
    assert [each["fault"] for each in found if each["type"] == "evidence"] == ["xid:79"]
    told = muster.run("health", "replay", file).stdout.splitlines()[-1]
    assert told == "set aside, since they are no numbers: 2 samples and 1 values of events (lines 2, 3)"


def test_reports_of_release_0_1_0_are_read_with_those_of_today(muster: Command, tmp_path: Path) -> None:
    earlier = {**json.loads(telemetry_of_0_1_0.REPORT), "node_id": "gpu-01"}
    said = muster.run("health", "replay", written(tmp_path, earlier, *RECORDS), "--json")
    assert said.returncode == Exit.OK, said.stderr
    short = {**earlier, "gpus": [{"uuid": "GPU-a", "values": [0.0] * 30}]}
    said = muster.run("health", "replay", written(tmp_path, short))
    assert "30 values of a GPU; schema 1 has 29" in said.stdout + said.stderr
