"""The policy files that ship: each is a valid policy, and the one for production differs by its checks alone."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from muster.domain.policy.differences import differences
from muster.domain.policy.document import DEFAULT_POLICY, Policy

FOLDER: Final = Path(__file__).parents[3] / "policy"
SHIPPED: Final = sorted(FOLDER.glob("*.yaml"))


def loaded(file: Path) -> Policy:
    document: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return Policy.model_validate(document, strict=False)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_each_file_is_a_policy_and_comes_back_from_the_database_as_it_is(file: Path) -> None:
    policy = loaded(file)
    assert Policy.model_validate_json(policy.model_dump_json(), strict=False) == policy


def test_the_one_for_production_has_each_check_on_and_is_the_built_in_one_otherwise() -> None:
    policy = loaded(FOLDER / "production.yaml")
    assert policy.dispatch.preflight_from_nodes == 2
    assert all(tier.quick_check_s > 0 and tier.pairwise_check_s > 0 for tier in policy.tiers.values())
    assert policy.recovery.spares.confidence == pytest.approx(0.99)
    assert policy.health.detectors.pair_probe.mode == "on"
    checks = {f"/tiers/{tier}/{check}_check_s" for tier in policy.tiers for check in ("quick", "pairwise")}
    assert {each.path for each in differences(DEFAULT_POLICY, policy)} == checks | {
        "/dispatch/preflight_from_nodes",
        "/dispatch/ready_within_s",
        "/recovery/spares/confidence",
    }
