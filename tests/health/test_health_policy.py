"""The policy's settled numbers, and what it refuses."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from control.policy.policies import stored_policy
from muster.domain.evidence.findings import Severity
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.health import (
    BreakerPolicy,
    ClockEventPolicy,
    EvidencePolicy,
    HealthPolicy,
    ScorePolicy,
    StandingPolicy,
)

DAY_S = 86_400


def test_the_settled_numbers_are_the_defaults() -> None:
    policy = DEFAULT_POLICY.health
    assert (policy.standing.probation_s, policy.standing.reclaimable_only_s) == (28 * DAY_S, 72 * 3600)
    assert (policy.repair.attempts_max, policy.repair.attempts_window_s, policy.repair.timeout_s) == (
        3,
        30 * DAY_S,
        25 * 60,
    )
    assert policy.breaker == BreakerPolicy(
        window_s=600.0,
        fleet_window_share=0.05,
        fleet_share=0.2,
        rack_share=0.25,
        cohort_share=0.1,
        tenant_share=0.1,
    )
    assert (policy.evidence.coalescing_s, policy.evidence.stale_action_s) == (5.0, 600.0)


@pytest.mark.parametrize(
    ("model", "document"),
    [
        (EvidencePolicy, {"restate_s": 1500.0}),
        (ScorePolicy, {"raise_line": 60.0}),
        (ScorePolicy, {"reported_points_max": 80.0}),
        (StandingPolicy, {"reclaimable_only_s": 29.0 * DAY_S}),
        (StandingPolicy, {"flap_moves": 1}),
        (ClockEventPolicy, {"harmful_samples": 11}),
        (BreakerPolicy, {"fleet_share": 1.01}),
        (HealthPolicy, {"unheard_of": 1}),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(model: type[Any], document: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(document)


def test_a_policy_survives_json() -> None:
    document = DEFAULT_POLICY.health.model_dump_json()
    assert HealthPolicy.model_validate_json(document) == DEFAULT_POLICY.health


@pytest.mark.parametrize("section", [{"evidence": {"state_window_s": 3600}}, {"rule_cordon": {"state_fault_s": 3600}}])
def test_a_state_lasts_longer_than_until_agents_report_it_again(section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="3600"):
        HealthPolicy.model_validate(section)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fleet_share": 0.01}, "fleet_window_share must not exceed fleet_share"),
        ({"fleet_window_floor": 3}, "fleet_window_floor must not exceed fleet_floor"),
        (
            {"fleet_share": 0.01, "fleet_window_floor": 3},
            "fleet_window_share must not exceed fleet_share; fleet_window_floor must not exceed fleet_floor",
        ),
    ],
)
def test_caps_that_contradict_each_other_are_refused_together_but_not_of_a_version_that_stands(
    given: dict[str, float], words: str
) -> None:
    document = json.dumps({"health": {"breaker": given}})
    with pytest.raises(ValidationError, match=words):
        Policy.model_validate_json(document)
    assert stored_policy(1, document).health.breaker == DEFAULT_POLICY.health.breaker.model_copy(update=given)


OWN: dict[str, Any] = {"points": 50.0, "half_life_s": 7200.0, "counts_for_s": 86_400.0}


def test_a_detectors_own_weight_takes_the_place_of_its_severitys() -> None:
    score = HealthPolicy.model_validate({"score": {"weights_of": {"clock_events": {"degraded": OWN}}}}).score
    assert score.weight(Severity.DEGRADED, "clock_events").points == 50.0
    assert score.weight(Severity.WARNING, "clock_events") == score.warning
    assert score.weight(Severity.DEGRADED, "pcie_link") == score.degraded


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"clock_events": {"degraded": {**OWN, "points": 120.0}}}, "score.weights_of.clock_events.degraded.points"),
        ({"clock_events": {"degraded": {**OWN, "half_life_s": "5%"}}}, "weights_of.clock_events.degraded.half_life_s"),
        ({"clock_events": {"degraded": {"points": 1.0}}}, "weights_of.clock_events.degraded.counts_for_s"),
        ({"clock_events": {"bad": OWN}}, "score.weights_of.clock_events.bad"),
        (
            {"clocks": {"degraded": OWN}},
            "score.weights_of: there is no detector clocks; accepted are burn_in, bus_repeats",
        ),
    ],
)
def test_a_weight_that_is_none_is_refused_by_its_name(given: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError) as refused:
        HealthPolicy.model_validate({"score": {"weights_of": given}})
    told = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in refused.value.errors()]
    assert any(where in each for each in told), told
