"""``muster tenant quota`` says what it asks for."""

import json
from pathlib import Path

from muster.cli.exits import Exit
from tests.cli.test_commands import Command
from tests.recorded_server import Answer, serving

QUOTA = {"tenant_id": "ten_1", "tier": "spot", "ceiling_gpus": 16, "updated_at": "2026-01-01T00:00:00Z"}


def test_a_ceiling_is_set_with_its_reason(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: Answer(200, QUOTA)) as server:
        muster = Command(tmp_path)
        said = muster.run("tenant", "quota", "set", "ten_1", "spot", "16", "--reason", "contract", url=server.url)
        assert muster.run("tenant", "quota", "set", "ten_1", "spot", "16", url=server.url).returncode == Exit.USAGE
    assert said.returncode == 0, said.stderr
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("PUT", "/v1/tenants/ten_1/quotas/spot")
    assert json.loads(asked.body) == {"ceiling_gpus": 16, "reason": "contract"}
    assert said.stdout == "ten_1: 16 GPUs in the tier spot\n"


def test_a_tenants_ceilings_are_listed(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: Answer(200, {"items": [QUOTA], "next_cursor": None})) as server:
        said = Command(tmp_path).run("tenant", "quota", "list", "ten_1", url=server.url)
    assert said.stdout.split() == ["TIER", "CEILING", "spot", "16"]


def test_in_a_local_stack_the_operator_looks_at_any_tenants_ceilings(tmp_path: Path) -> None:
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
    assert server.asked[0].headers["authorization"] == "Bearer mst_operator"
