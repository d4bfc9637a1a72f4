"""What dismissed verdicts change, and the proposals that follow."""

from muster.domain.job.verdicts import VerdictKind
from muster.domain.policy.watch import WatchPolicy
from watch.false_alarms import may_be_muted, only_notifies, proposal_of, rule_of
from watch.phases import Phase

POLICY = WatchPolicy()


def test_a_rule_only_notifies_after_as_many_false_alarms_as_the_policy_allows() -> None:
    assert [only_notifies(number, POLICY) for number in range(4)] == [False, False, True, True]
    assert not only_notifies(99, POLICY.model_copy(update={"false_alarms": 0}))


def test_each_phase_of_a_hang_has_a_limit_to_propose_and_never_over_the_longest() -> None:
    assert rule_of(VerdictKind.HANG, Phase.EVALUATION) == "hang.eval"
    proposal = proposal_of(VerdictKind.HANG, Phase.EVALUATION, "storage", 2, POLICY)
    assert "raise `watch.known.eval_s` from 40 s to 80 s" in proposal
    assert "with the cause storage" in proposal
    for phase in Phase:
        assert "watch.known." in proposal_of(VerdictKind.HANG, phase, "storage", 2, POLICY), phase
    equal = POLICY.model_copy(update={"known": POLICY.known.model_copy(update={"step_s": POLICY.unknown.step_s})})
    assert "`watch.unknown.step_s` and" in proposal_of(VerdictKind.HANG, Phase.STEP, "storage", 2, equal)


def test_other_kinds_have_one_rule_each_and_no_limit_to_propose() -> None:
    assert rule_of(VerdictKind.STRAGGLER, Phase.STEP) == "straggler"
    assert "watch." not in proposal_of(VerdictKind.STRAGGLER, Phase.STEP, "host", 3, POLICY)
    assert "watch." not in proposal_of(VerdictKind.HANG, "a phase of a later release", "storage", 3, POLICY)


def test_no_false_alarm_mutes_a_measurement_or_the_state_of_a_process() -> None:
    assert may_be_muted(VerdictKind.HANG, "storage")
    assert may_be_muted(VerdictKind.STRAGGLER, "host")
    assert not may_be_muted(VerdictKind.HANG, "storage", is_measured=True)
    assert not any(may_be_muted(VerdictKind.HANG, cause) for cause in ("stopped_process", "dead_rank"))
    assert not may_be_muted(VerdictKind.CORRUPTION, "transient"), "its reaction asks no rule"
