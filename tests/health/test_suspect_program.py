"""One symptom on GPUs that have nothing in common is the program's; on a GPU that comes again it is the GPU's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.suspect_program import LOOKBACK, FailedAttempt, suspicion_of
from muster.domain.ids import AttemptId, GpuUuid
from muster.domain.policy.document import SuspicionPolicy
from tests.health.case_factory import HOUR, NOW_MS

POLICY = SuspicionPolicy()


def failure(number: int, gpus: str, symptom: str = "xid:95", *, ago_ms: int = 0) -> FailedAttempt:
    """``gpus``: a letter each."""
    shown = {symptom: frozenset(GpuUuid(letter) for letter in gpus)} if gpus else {}
    return FailedAttempt(AttemptId(f"att_{number}"), NOW_MS - ago_ms, shown)


def troubles(*gpus: str) -> list[FailedAttempt]:
    return [failure(number, each) for number, each in enumerate(gpus)]


def test_three_sets_without_a_gpu_in_common_make_a_suspect() -> None:
    found = suspicion_of(troubles("ab", "c", "de"), POLICY, NOW_MS)
    assert found is not None
    assert (found.symptom, found.gpu_sets) == ("xid:95", (("a", "b"), ("c",), ("d", "e")))
    assert found.attempt_ids == ("att_0", "att_1", "att_2")
    assert found.gpu_uuids == ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param(("a", "b"), id="two sets"),
        pytest.param(("a", "a", "a", "a"), id="one GPU again and again"),
        pytest.param(("ab", "bc", "cd"), id="each has one with the next"),
        pytest.param(("a", "b", "", ""), id="nothing was seen"),
    ],
)
def test_what_gpus_explain_suspects_none(gpus: tuple[str, ...]) -> None:
    assert suspicion_of(troubles(*gpus), POLICY, NOW_MS) is None


def test_sets_that_overlap_hide_no_three_that_do_not() -> None:
    found = suspicion_of(troubles("ab", "bc", "cd", "ef"), POLICY, NOW_MS)
    assert found is not None
    assert found.gpu_sets == (("a", "b"), ("c", "d"), ("e", "f"))


def test_different_symptoms_are_different_faults() -> None:
    mixed = [failure(1, "a"), failure(2, "b", "xid:79"), failure(3, "c", "gpu_lost"), failure(4, "d")]
    assert suspicion_of(mixed, POLICY, NOW_MS) is None


def test_what_ended_before_the_window_states_nothing() -> None:
    old = [failure(1, "a", ago_ms=25 * HOUR), failure(2, "b"), failure(3, "c")]
    assert suspicion_of(old, POLICY, NOW_MS) is None
    assert suspicion_of(old, SuspicionPolicy(window_s=26 * 3600), NOW_MS) is not None


def test_the_policy_states_how_many_sets() -> None:
    assert suspicion_of(troubles("a", "b"), SuspicionPolicy(disjoint_sets=2), NOW_MS) is not None
    assert suspicion_of(troubles("a", "b", "c"), SuspicionPolicy(disjoint_sets=4), NOW_MS) is None


@given(st.lists(st.text("abcdefgh", max_size=4), max_size=LOOKBACK), st.randoms())
def test_whoever_is_suspected_is_suspected_for_disjoint_sets_that_were_seen(gpus: list[str], rng: object) -> None:
    seen = troubles(*gpus)
    shuffled = list(seen)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis' own random
    found = suspicion_of(shuffled, POLICY, NOW_MS)
    assert (found is None) == (suspicion_of(seen, POLICY, NOW_MS) is None), "their order decides nothing"
    if found is not None:
        assert len(found.gpu_sets) == POLICY.disjoint_sets
        assert len(found.gpu_uuids) == sum(len(each) for each in found.gpu_sets)
        by_id = {each.attempt_id: each.symptoms["xid:95"] for each in seen if each.symptoms}
        assert all(set(each) == by_id[one] for one, each in zip(found.attempt_ids, found.gpu_sets, strict=True))
