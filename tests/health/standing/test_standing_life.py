"""Whole lives of one GPU under random events: only listed edges, I11, and the same decisions for the same past."""

from dataclasses import dataclass, replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from health.standing.gpu_case import RULE, BurnInResult, GpuCase, Move, PastRepair
from health.standing.interventions import (
    RefusedMoveError,
    dismiss,
    fail_repair,
    finish_repair,
    reinstate,
    retire,
    start_repair,
)
from health.standing.standing import decide, next_evaluation_ms
from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.ids import EvidenceId
from muster.domain.states import STANDING_EDGES, Standing
from tests.health.case_factory import DAY, GPU, HOUR, MINUTE, NOW_MS, POLICY, evidence
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

    def act(self, act: tuple[str, object, object]) -> Move | None:
        name, first, second = act
        ask = {"person": "operator:ann", "reason": "because", "now_ms": self.now_ms}
        match name, first, second:
            case "evidence", Severity() as severity, Trust() as trust:
                new = evidence(str(len(self.gpu.evidence)), severity, trust=trust, at_ms=self.now_ms)
                self.gpu = replace(self.gpu, evidence=(*self.gpu.evidence, new))
            case "burn_in", bool() as has_passed, int() as length_ms:
                result = BurnInResult(self.now_ms - length_ms, self.now_ms, has_passed)
                self.gpu = replace(self.gpu, burn_ins=(*self.gpu.burn_ins, result))
            case "retire", _, _:
                return retire(self.gpu, **ask)  # type: ignore[arg-type]
            case "reinstate", _, _:
                return reinstate(self.gpu, **ask)  # type: ignore[arg-type]
            case "start_repair", _, _:
                ask["actor"] = ask.pop("person")
                return start_repair(self.gpu, "memory", policy=POLICY, **ask)  # type: ignore[arg-type]
            case "finish_repair", _, _:
                return finish_repair(self.gpu, actor="operator:ann", now_ms=self.now_ms)
            case "fail_repair", _, _:
                return fail_repair(self.gpu, actor="operator:ann", now_ms=self.now_ms)
            case _:
                return self.dismiss_all()
        return None

    def dismiss_all(self) -> Move | None:
        ids = frozenset(EvidenceId(each.id) for each in self.gpu.evidence)
        asked = dismiss(self.gpu, ids, person="operator:ann", reason="because", now_ms=self.now_ms, policy=POLICY)
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
        assert max(passed) > max(against, default=-1), "I11"


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
        for _ in range(10):
            decided = decide(life.gpu, life.now_ms, POLICY)
            if decided is None:
                break
            assert decide(life.gpu, life.now_ms, POLICY) == decided
            check_move(life.gpu, decided)
            life.make(decided)
        else:
            raise AssertionError(f"the rules do not come to rest: {life.gpu.moves[-4:]}")
    return list(life.gpu.moves)


@given(STEPS)
def test_every_move_of_a_life_is_a_listed_edge_with_its_proof(
    steps: list[tuple[int, tuple[str, object, object]]],
) -> None:
    live(steps)


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
