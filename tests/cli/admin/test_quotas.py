"""``muster tenant quota`` says what it asks for."""

import json
from pathlib import Path

from muster.cli.framework.exits import Exit
from tests.cli.command import Command
from tests.recorded_server import Answer, serving

QUOTA = {
    "tenant_id": "ten_1",
    "tier": "spot",
    "ceiling_gpus": 16,
    "guaranteed_gpus": 8,
    "borrowable_gpus": None,
    "assigned_gpus": 3,
    "lent_gpus": 0,
    "updated_at": "2026-01-01T00:00:00Z",
}


def test_a_ceiling_is_set_with_its_reason(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: Answer(200, QUOTA)) as server:
        muster = Command(tmp_path)
        said = muster.run(
            "tenant", "quota", "set", "ten_1", "spot", "16", "--guaranteed", "8", "--reason", "contract", url=server.url
        )
        assert muster.run("tenant", "quota", "set", "ten_1", "spot", "16", url=server.url).returncode == Exit.USAGE
    assert said.returncode == 0, said.stderr
    (asked,) = server.requested
    assert (asked.method, asked.path) == ("PUT", "/v1/tenants/ten_1/quotas/spot")
    numbers = {"ceiling_gpus": 16, "guaranteed_gpus": 8, "borrowable_gpus": None}
    assert json.loads(asked.body) == {**numbers, "reason": "contract"}
    assert said.stdout == "ten_1: 8 GPUs guaranteed, at most 16 GPUs in the tier spot\n"


def test_what_is_lent_of_a_new_guarantee_is_reported(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: Answer(200, {**QUOTA, "lent_gpus": 5})) as server:
        words = ("tenant", "quota", "set", "ten_1", "spot", "16", "--guaranteed", "8", "--reason", "contract")
        said = Command(tmp_path).run(*words, url=server.url)
    assert "5 of the guaranteed GPUs are in use by jobs of others now" in " ".join(said.stdout.split())


def test_a_tenant_is_put_under_another_one(tmp_path: Path) -> None:
    placed = {
        "id": "ten_1",
        "name": "vision",
        "parent_id": "ten_2",
        "weight": 2.0,
        "created_at": "2026-01-01T00:00:00Z",
    }
    with serving(lambda _asked, _number: Answer(200, placed)) as server:
        words = ("tenant", "place", "ten_1", "--under", "ten_2", "--weight", "2", "--reason", "their share")
        said = Command(tmp_path).run(*words, url=server.url)
    assert said.returncode == 0, said.stderr
    (asked,) = server.requested
    assert (asked.method, asked.path) == ("PUT", "/v1/tenants/ten_1/place")
    assert json.loads(asked.body) == {"parent_id": "ten_2", "weight": 2.0, "reason": "their share"}
    assert said.stdout == "ten_1: under ten_2, of weight 2\n"


def test_a_tenants_ceilings_are_listed(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: Answer(200, {"items": [QUOTA], "next_cursor": None})) as server:
        said = Command(tmp_path).run("tenant", "quota", "list", "ten_1", url=server.url)
    assert said.stdout.split() == [
        "TIER",
        "GUARANTEED",
        "BORROWABLE",
        "CEILING",
        "ASSIGNED",
        "spot",
        "8",
        "-",
        "16",
        "3",
    ]


def test_in_a_local_stack_the_operator_checks_any_tenants_ceilings(tmp_path: Path) -> None:
    muster = Command(tmp_path)
    operator_key = tmp_path / "operator.key"
    operator_key.write_text("mst_operator")
    with serving(lambda _asked, _number: Answer(200, {"items": [QUOTA], "next_cursor": None})) as server:
        profile = {
            "api_url": server.url,
            "key_file": str(muster.key_file),
            "operator_key_file": str(operator_key),
        }
        (tmp_path / ".muster").mkdir()
        (tmp_path / ".muster" / "cli.json").write_text(json.dumps(profile))
        assert muster.run("tenant", "quota", "list", "ten_1").returncode == 0
    assert server.requested[0].headers["authorization"] == "Bearer mst_operator"
