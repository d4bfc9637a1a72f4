"""Whether a rule starts a remedy: only what the policy names, of what is out and free, within attempts and caps."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.remedy.remedy import Remedy, remedy_of
from health.remedy.remedy_start import Around, needs_person, waits_for
from health.standing.gpu_case import PastRepair
from muster.domain.evidence.findings import Severity
from muster.domain.evidence.repairs import RepairAction, RepairVerb
from muster.domain.policy.document import Policy
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing
from tests.health.case_factory import DAY, NOW_MS, case, condemning, evidence

FREE = Around()
OUT = case(Standing.QUARANTINED, condemning("ecc"))
OFF_THE_BUS = case(Standing.QUARANTINED, evidence("bus", Severity.CONDEMNING, fault="xid:79", values={"code": 79.0}))
ECC = replace(OUT, evidence=(replace(OUT.evidence[0], values={"code": 95.0}),))


def policy(*verbs: str, **repair: object) -> HealthPolicy:
    return Policy.model_validate({"health": {"repair": {"starts_by_rule": list(verbs), **repair}}}).health


EVERYTHING = policy(*RepairVerb)


def due(gpu: object = ECC, rules: HealthPolicy = EVERYTHING, verbs: frozenset[RepairVerb] | None = None) -> Remedy:
    found = remedy_of(gpu, frozenset(RepairVerb) if verbs is None else verbs, NOW_MS, rules)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_by_default_rules_start_nothing() -> None:
    assert Policy().health.repair.starts_by_rule == ()
    assert waits_for(ECC, due(), FREE, NOW_MS, policy()) == "no rule may start reset"


def test_what_is_out_free_and_allowed_is_started() -> None:
    assert waits_for(ECC, due(), FREE, NOW_MS, policy("gpu_reset")) is None
    assert needs_person(ECC, due(), NOW_MS, policy("gpu_reset")) is None


@pytest.mark.parametrize("standing", sorted(set(Standing) - {Standing.QUARANTINED}))
def test_only_what_is_quarantined_is_started(standing: Standing) -> None:
    assert waits_for(replace(ECC, standing=standing), due(), FREE, NOW_MS, EVERYTHING) == f"it is {standing}"


def test_a_host_that_is_not_received_would_never_request_the_order() -> None:
    assert waits_for(replace(ECC, has_contact=False), due(), FREE, NOW_MS, EVERYTHING) == "its host is silent"


@pytest.mark.parametrize(
    "around",
    [Around(holder="this"), Around(burn_in="this"), Around(open_repair="this"), Around(blocked_by="this")],
)
def test_what_is_on_the_gpu_or_holds_it_back_is_waited_for(around: Around) -> None:
    assert waits_for(ECC, due(), around, NOW_MS, EVERYTHING) == "this"


@pytest.mark.parametrize("around", [Around(host_holder="this"), Around(host_burn_in="this")])
def test_what_is_on_the_host_is_waited_for_by_what_all_of_it_feels(around: Around) -> None:
    assert waits_for(OFF_THE_BUS, due(OFF_THE_BUS), around, NOW_MS, EVERYTHING) == "this"
    assert waits_for(ECC, due(), around, NOW_MS, EVERYTHING) is None, "a reset is felt by its own GPU alone"


def test_an_open_breaker_and_the_caps_are_waited_for() -> None:
    rules = policy("gpu_reset", by_rule_fleet_max=4, by_rule_rack_max=2)
    for around, why in (
        (replace(FREE, open_scope="rack:r1"), "the breaker's scope rack:r1 is open"),
        (replace(FREE, num_fleet=4), "4 repairs by agents are open in the fleet"),
        (replace(FREE, num_rack=2), "2 repairs by agents are open in its rack"),
    ):
        assert waits_for(ECC, due(), around, NOW_MS, rules) == why
    assert waits_for(ECC, due(), replace(FREE, num_fleet=3, num_rack=1), NOW_MS, rules) is None


def test_what_a_rule_may_not_do_is_a_persons_and_states_why() -> None:
    assert needs_person(ECC, due(), NOW_MS, policy("reboot")) == (
        "reset by its agent (gpu_reset): ecc (NVIDIA's XID catalogue asks for it); no rule may start it"
        " (health.repair.starts_by_rule)"
    )
    not_allowed = due(verbs=frozenset())
    assert "its host does not allow its agent gpu_reset" in (needs_person(ECC, not_allowed, NOW_MS, EVERYTHING) or "")
    unknown = replace(ECC, evidence=())
    assert "names a remedy" in (needs_person(unknown, None, NOW_MS, EVERYTHING) or "")


def test_where_retirement_is_proposed_no_second_word_is_stated() -> None:
    used_up = replace(ECC, repairs=attempts(3))
    assert due(used_up).action is RepairAction.SWAP
    assert needs_person(used_up, due(used_up), NOW_MS, EVERYTHING) is None
    assert needs_person(replace(ECC, standing=Standing.REPAIR), None, NOW_MS, EVERYTHING) is None


def attempts(number: int) -> tuple[PastRepair, ...]:
    return tuple(
        PastRepair("memory", NOW_MS - n * DAY, NOW_MS - n * DAY + 1, is_done=False) for n in range(number, 0, -1)
    )


@given(
    st.integers(0, 6),
    st.integers(1, 5),
    st.frozensets(st.sampled_from(RepairVerb)),
    st.builds(Around, **{each.name: st.sampled_from((None, "this")) for each in fields(Around)[:7]}),
)
def test_a_rule_never_goes_past_the_attempts_nor_beyond_its_verbs(
    number: int, most: int, verbs: frozenset[RepairVerb], around: Around
) -> None:
    rules = policy(*verbs, attempts_max=most)
    gpu = replace(ECC, repairs=attempts(number))
    remedy = due(gpu, rules)
    if waits_for(gpu, remedy, around, NOW_MS, rules) is None:
        assert number < most
        assert remedy.verb in verbs
        assert (around.holder, around.burn_in, around.open_repair, around.blocked_by, around.open_scope) == (None,) * 5
