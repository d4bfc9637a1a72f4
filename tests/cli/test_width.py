"""Every list and show with real values as long as they get: 80 columns, and each id that a table names is whole."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.cli.framework.app import app
from tests.recorded_server import Answer, Requested, serving

AT = "2026-01-01T00:00:00.123456Z"
WORDS = "its links are down, and the cause is unknown since an operator checked it for the last time: " + "again " * 12
NAME = "a-name-of-sixty-three-characters-" + "x" * 30
UUID = "GPU-1a2b3c4d-0003-4000-8000-00000000000f"
MODEL = "NVIDIA GB200 NVL72 192GB HBM3e"


COHORT = f"cohort:compute_capability=10.0|driver_version=580.95|model={MODEL}|vbios_version=-"


def an_id(prefix: str) -> str:
    return f"{prefix}_01m7yvc10031529q2cqqjreg4q"


ACTOR = f"join-token:M35mWfpWWYs of {an_id('key')}"
EACH: dict[str, dict[str, Any]] = {
    "jobs": {"id": an_id("job"), "name": NAME, "tier": "on_demand", "state": "RECOVERING", "created_at": AT,
             "state_reason": WORDS, "tenant_id": an_id("ten"), "spec": {"shape": {"nodes": 64, "gpus_per_node": 8}}},
    "nodes": {"id": an_id("node"), "name": "gpu-host-0123.rack-17.site-4", "contact": "SILENT", "last_heartbeat_at": AT,
              "num_gpus": 8, "num_assigned_gpus": 8, "num_cordons": 3, "is_simulated": False, "rack": "rack-17",
              "address": "10.0.0.1", "boot_id": "b" * 36, "labels": {},
              "standings": {"HEALTHY": 4, "PROBATION": 1, "QUARANTINED": 2, "UNPROVEN": 1}},
    "gpus": {"uuid": UUID, "slot_index": 15, "model": MODEL, "standing": "QUARANTINED", "override": "PROBATION",
             "score": 100.0, "node_id": an_id("node"), "serial": "1650" * 4, "driver_version": "580.95",
             "cohort_key": "k"},
    "cordons": {"id": an_id("cdn"), "node_id": None, "gpu_uuid": UUID, "reason": WORDS, "owner": ACTOR,
                "created_at": AT, "until": None},
    "incidents": {"id": an_id("inc"), "kind": "quota_below_holdings", "state": "closed", "subject_id": UUID,
                  "opened_at": AT, "summary": WORDS},
    "burn-ins": {"id": an_id("bi"), "gpu_uuid": UUID, "outcome": None, "state": "ABANDONED", "ordered_at": AT,
                 "tries": 3, "ordered_by": ACTOR, "reason": WORDS},
    "reclaims": {"id": an_id("rcl"), "state": "OVERTAKEN", "num_gpus": 512, "victim_tier": "on_demand",
                 "beneficiary_tier": "on_demand", "deadline_at": AT, "outcome": "work_lost", "reason": WORDS,
                 "victim_job_id": an_id("job"), "beneficiary_job_id": an_id("job")},
    "keys": {"id": an_id("key"), "name": NAME, "role": "tenant_member", "revoked_at": AT, "last_used_at": AT,
             "prefix": "mst_abcdef", "tenant_id": an_id("ten"), "node_id": None, "expires_at": AT},
    "persons": {"id": an_id("prs"), "name": NAME, "role": "tenant_member", "disabled_at": AT, "created_at": AT,
                "tenant_id": an_id("ten")},
    "tenants": {"id": an_id("ten"), "name": NAME, "created_at": AT, "parent_id": an_id("ten"), "weight": 0.001},
    "audit": {"position": 12345678, "at": AT, "actor": ACTOR, "action": "gpu.evidence_dismissed", "subject_id": UUID,
              "reason": WORDS, "address": "10.0.0.1", "hash": "f" * 64},
    "cohorts": {"key": f"compute_capability=10.0|model={MODEL}", "num_gpus": 10_000, "num_nodes": 1_250,
                "attributes": {"compute_capability": "10.0", "model": MODEL},
                "standings": {"HEALTHY": 9_990, "QUARANTINED": 10}},
    "policies": {"version": 1234, "is_active": True, "created_at": AT, "created_by": ACTOR, "reason": WORDS},
    "quotas": {"tier": "on_demand", "guaranteed_gpus": 100_000, "borrowable_gpus": 100_000,
               "ceiling_gpus": 100_000, "assigned_gpus": 100_000, "updated_at": AT},
    "events": {"position": 12345678, "at": AT, "kind": "incident.quota_below_holdings", "subject_id": UUID,
               "payload": {"reason": WORDS}},
    "checkpoints": {"step": 1_000_000, "status": "COMMITTED", "generation": "0001000000-a1b2c3d4", "committed_at": AT,
                    "reason": WORDS, "bytes": 1 << 40},
    "ranks": {"rank": 8191, "step": 1_000_000, "loss": 1.23456789, "step_s": 12.3456, "updated_at": AT,
              "outcome": "nccl_timeout", "node_id": an_id("node"),
              "pace": {"tokens_per_s": 1_234_567.8, "memory_mib": 81_559.0, "mfu": 0.4567, "data_s": 123.456}},
    "steps": {"step": 1_000_000, "loss": 1.23456789, "step_s": 12.3456, "at": AT, "attempt_id": an_id("att"),
              "pace": None},
    "evidence": {"id": an_id("ev"), "severity": "condemning", "dismissed_at": None, "last_seen_at": AT,
                 "summary": WORDS, "fault_key": "xid", "sources": ["nvml", "kernel"], "trust": "measured"},
    "standings": {"at": AT, "from": "QUARANTINED", "to": "PROBATION", "actor": ACTOR, "reason": WORDS},
    "breakers": {"name": "quarantine", "scopes": [
        {"scope": COHORT, "is_open": True, "num_quarantined": 100, "cap": 100, "opened_at": AT}]},
}  # fmt: skip
IN_A_PATH = {"gpus/jobs": EACH["jobs"] | {
    "job_id": an_id("job"), "job_name": NAME, "attempt_number": 12, "attempt_state": "STOPPING",
    "cause": "checkpoint_corrupt", "placed_at": AT, "proof": WORDS}}  # fmt: skip
LISTS = [
    "job list", f"job checkpoints {an_id('job')}", f"job ranks {an_id('job')}", f"job steps {an_id('job')}",
    f"job events {an_id('job')}", "node list", "gpu list", f"gpu jobs {UUID}", f"gpu moves {UUID}",
    f"gpu evidence {UUID}", "cordon list", "incident list", "burnin list", "reclaim list", "key list", "person list",
    "tenant list", f"tenant quota list {an_id('ten')}", "audit list", "cohort list", "policy list", "breaker list",
    "event list",
]  # fmt: skip


def answered(requested: Requested, _number: int) -> Answer:
    parts = requested.path.partition("?")[0].removeprefix("/v1/").split("/")
    if "after=12345678" in requested.path:
        return Answer(200, {"items": [], "next_after": 12345678})
    document = IN_A_PATH.get(f"{parts[0]}/{parts[-1]}") or EACH[parts[-1]]
    return Answer(200, {"items": [document], "next_cursor": None})


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Types a command in this process, against a server whose values are long."""
    (tmp_path / "key").write_text("mst_test")
    monkeypatch.setenv("MUSTER_API_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("MUSTER_PROFILE", raising=False)
    with serving(answered) as server:
        monkeypatch.setenv("MUSTER_API_URL", server.url)

        def type_(*words: str) -> str:
            assert app([*words], standalone_mode=False) in {None, 0}
            return capsys.readouterr().out

        yield type_


@pytest.mark.parametrize("line", LISTS)
def test_a_list_fits_80_columns_and_breaks_no_id(typed: Callable[..., str], line: str) -> None:
    said = typed(*line.split())
    assert max(len(each) for each in said.splitlines()) <= 80, said
    own_id = typed(*line.split(), "--json").split('"id": "')
    if len(own_id) > 1 and line != "node list":  # a node is typed by its name
        assert own_id[1].partition('"')[0] in said


@pytest.mark.parametrize("line", LISTS)
def test_wide_has_all_of_a_row_on_one_line(typed: Callable[..., str], line: str) -> None:
    said = typed(*line.split(), "--wide").splitlines()
    assert len(said) == 1 if line == "event list" else len(said) == 2, said
