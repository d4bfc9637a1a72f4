"""Whole lives of one GPU under random events: only listed edges, I11, and the same decisions for the same past."""

from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from health.standing.gpu_case import EVERY_GROUP, RULE, BurnInResult, GpuCase, Move, PastRepair
from health.standing.interventions import (
    RefusedMoveError,
    dismiss,
    fail_repair,
    finish_repair,
    quarantine,
    reinstate,
    retire,
    start_repair,
)
from health.standing.rest import require_rest
from health.standing.standing import MOVES_AT_ONCE, decide, next_evaluation_ms
from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.evidence.traits import FaultGroup
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import STANDING_EDGES, Standing
from tests.health.case_factory import DAY, GPU, HOUR, MINUTE, NOW_MS, POLICY, SECOND, evidence
from tests.health.strategies import many_evidences

DISTRUSTED: Final = {Standing.UNPROVEN, Standing.QUARANTINED, Standing.REPAIR}
TRUSTED: Final = {Standing.PROBATION, Standing.HEALTHY, Standing.SUSPECT}

ACTS: Final = st.one_of(
    st.tuples(st.just("evidence"), st.sampled_from(Severity), st.sampled_from(Trust)),
    st.tuples(st.just("burn_in"), st.booleans(), st.integers(1, 3 * HOUR)),
    st.tuples(
        st.sampled_from(["start_repair", "finish_repair", "fail_repair", "retire", "reinstate", "dismiss_all"]),
        st.none(),
        st.none(),
    ),
)
STEPS: Final = st.lists(st.tuples(st.sampled_from([1, MINUTE, 20 * MINUTE, 6 * HOUR, 700 * HOUR]), ACTS), max_size=25)


@dataclass
class Life:
    """One GPU whose moves are made as they are decided, with nothing in the way."""

    gpu: GpuCase
    now_ms: int = NOW_MS
    policy: HealthPolicy = POLICY
    fault: str = "xid:63"
    covers: frozenset[FaultGroup] = EVERY_GROUP

    def act(self, act: tuple[str, object, object]) -> Move | None:
        name, first, second = act
        ask = {"person": "operator:ann", "reason": "because", "now_ms": self.now_ms}
        match name, first, second:
            case "evidence", Severity() as severity, Trust() as trust:
                new = evidence(str(len(self.gpu.evidence)), severity, trust=trust, at_ms=self.now_ms, fault=self.fault)
                self.gpu = replace(self.gpu, evidence=(*self.gpu.evidence, new))
            case "burn_in", bool() as has_passed, int() as length_ms:
                result = BurnInResult(self.now_ms - length_ms, self.now_ms, has_passed, self.covers)
                self.gpu = replace(self.gpu, burn_ins=(*self.gpu.burn_ins, result))
            case "retire", _, _:
                return retire(self.gpu, **ask)  # type: ignore[arg-type]
            case "reinstate", _, _:
                return reinstate(self.gpu, **ask)  # type: ignore[arg-type]
            case "quarantine", _, _:
                return quarantine(self.gpu, **ask)  # type: ignore[arg-type]
            case "start_repair", _, _:
                ask["actor"] = ask.pop("person")
                return start_repair(self.gpu, "memory", policy=self.policy, **ask)  # type: ignore[arg-type]
            case "finish_repair", _, _:
                return finish_repair(self.gpu, actor="operator:ann", now_ms=self.now_ms)
            case "fail_repair", _, _:
                return fail_repair(self.gpu, actor="operator:ann", now_ms=self.now_ms)
            case _:
                return self.dismiss_all()
        return None

    def dismiss_all(self) -> Move | None:
        ids = frozenset(EvidenceId(each.id) for each in self.gpu.evidence)
        asked = dismiss(self.gpu, ids, person="operator:ann", reason="because", now_ms=self.now_ms, policy=self.policy)
        self.gpu = replace(self.gpu, evidence=tuple(replace(each, is_dismissed=True) for each in self.gpu.evidence))
        return asked

    def make(self, move: Move) -> None:
        repairs = self.gpu.repairs
        if self.gpu.standing is Standing.REPAIR:
            is_done = move.to_standing is Standing.UNPROVEN
            repairs = (*repairs, PastRepair("memory", self.gpu.since_ms, self.now_ms, is_done))
        self.gpu = replace(
            self.gpu,
            standing=move.to_standing,
            since_ms=self.now_ms,
            origin=move.return_to,
            moves=(*self.gpu.moves, move),
            repairs=repairs,
        )


def check_move(gpu: GpuCase, move: Move) -> None:
    assert move.from_standing is gpu.standing
    assert move.to_standing in STANDING_EDGES[gpu.standing]
    measured = {each.id for each in gpu.evidence if each.trust is Trust.MEASURED}
    if move.to_standing is Standing.QUARANTINED and move.actor == RULE:
        assert measured.issuperset(move.evidence_ids), "reported evidence quarantines nothing"
    if gpu.standing in DISTRUSTED and move.to_standing in TRUSTED and move.actor == RULE:
        against = [
            each.last_seen_ms
            for each in gpu.evidence
            if each.severity is Severity.CONDEMNING and each.trust is Trust.MEASURED and not each.is_dismissed
        ]
        passed = [result.began_ms for result in gpu.burn_ins if result.has_passed]
        for each in gpu.evidence:
            if each.severity is Severity.CONDEMNING and each.trust is Trust.MEASURED and not each.is_dismissed:
                proofs = [one.began_ms for one in gpu.burn_ins if one.has_passed and each.traits.group in one.covers]
                proofs += [repair.ended_ms for repair in gpu.repairs if repair.is_done]
                assert max(proofs, default=0) > each.last_seen_ms, "I11: a proof answers what it tested"
        cited = {evidence_id for came in gpu.moves[-1:] for evidence_id in came.evidence_ids}
        against += [each.last_seen_ms for each in gpu.evidence if each.id in cited and not each.is_dismissed]
        assert max(passed) > max(against, default=-1), "I11: a proof answers what was seen before it began"


def live(steps: list[tuple[int, tuple[str, object, object]]]) -> list[Move]:
    life = Life(GpuCase(GPU, Standing.UNPROVEN, NOW_MS))
    for after_ms, act in steps:
        life.now_ms += after_ms
        before = life.gpu
        try:
            asked = life.act(act)
        except RefusedMoveError:
            asked = None
        if asked is not None:
            check_move(before, asked)
            life.make(asked)
        settle(life)
    return list(life.gpu.moves)


def settle(life: Life) -> None:
    """Make all moves that the rules decide at this moment."""
    for _ in range(MOVES_AT_ONCE):
        decided = decide(life.gpu, life.now_ms, life.policy)
        if decided is None:
            return
        assert decide(life.gpu, life.now_ms, life.policy) == decided
        check_move(life.gpu, decided)
        require_rest(life.gpu, decided, life.policy)
        life.make(decided)
    assert decide(life.gpu, life.now_ms, life.policy) is None, f"the rules do not come to rest: {life.gpu.moves[-4:]}"


@given(STEPS)
def test_every_move_of_a_life_is_a_listed_edge_with_its_proof(
    steps: list[tuple[int, tuple[str, object, object]]],
) -> None:
    live(steps)


def test_an_old_burn_in_answers_no_later_score() -> None:
    """The burn-in began after the condemning evidence and before the degraded: with one more, the score is 22.7."""
    first = (Severity.CONDEMNING, Severity.WARNING, Severity.DEGRADED)
    steps: list[tuple[int, tuple[str, object, object]]] = [
        *((1, ("evidence", severity, Trust.MEASURED)) for severity in first),
        (2, ("burn_in", True, 3)),
        (20 * MINUTE, ("evidence", Severity.DEGRADED, Trust.MEASURED)),
    ]
    moves = live(steps)
    path = [Standing.QUARANTINED, Standing.PROBATION, Standing.SUSPECT, Standing.QUARANTINED]
    assert [move.to_standing for move in moves] == path


LONG_ACTS: Final = ("evidence", "evidence", "evidence", "burn_in", "burn_in", "start_repair", "finish_repair")
RARE_ACTS: Final = ("fail_repair", "retire", "reinstate", "dismiss_all", "quarantine")


@given(st.integers(0, 2**64), st.booleans())
def test_at_any_moment_of_a_long_life_the_rules_come_to_rest(seed: int, retires_by_rule: bool) -> None:  # noqa: FBT001  # by place, as Hypothesis gives it
    rng = Random(seed)  # noqa: S311  # a long life is drawn from one number: Hypothesis draws short ones
    repair = POLICY.repair.model_copy(update={"retires_by_rule": retires_by_rule, "attempts_max": 1})
    life = Life(GpuCase(GPU, Standing.UNPROVEN, NOW_MS), policy=POLICY.model_copy(update={"repair": repair}))
    for _ in range(150):
        covers = frozenset(group for group in FaultGroup if rng.random() < 0.9)
        life.now_ms += rng.choice([0, 1, SECOND, MINUTE, 20 * MINUTE, HOUR, 6 * HOUR, 700 * HOUR])
        name = rng.choice(LONG_ACTS if rng.random() < 0.9 else RARE_ACTS)
        act: tuple[str, object, object] = (name, None, None)
        if name == "evidence":
            act = (name, rng.choice(list(Severity)), rng.choice([Trust.MEASURED, Trust.MEASURED, Trust.REPORTED]))
            life.fault = rng.choice(["xid:63", "xid:95", "xid:74", "xid:79", "xid:119", "xid:13"])
        elif name == "burn_in":
            act = (name, rng.random() < 0.8, rng.choice([1, 2, SECOND, MINUTE, 3 * HOUR]))
        life.covers = covers
        with suppress(RefusedMoveError):
            asked = life.act(act)
            if asked is not None:
                life.make(asked)
        settle(life)


@given(many_evidences, st.sampled_from(Standing), st.integers(0, 40 * DAY), st.integers(0, 60 * DAY))
def test_nothing_is_decided_before_the_next_check(
    found: tuple[Evidence, ...], standing: Standing, since: int, after: int
) -> None:
    gpu = GpuCase(GPU, standing, NOW_MS - since, found, origin=Standing.HEALTHY)
    if decide(gpu, NOW_MS, POLICY) is not None:
        return
    look_ms = next_evaluation_ms(gpu, NOW_MS, POLICY)
    at_ms = NOW_MS + after if look_ms is None else min(NOW_MS + after, look_ms - 1)
    assert decide(gpu, at_ms, POLICY) is None


@given(STEPS)
def test_the_same_life_is_judged_the_same(steps: list[tuple[int, tuple[str, object, object]]]) -> None:
    assert live(steps) == live(steps)
