"""Any facts of a small window: wrong, doubled and contradicting ones too."""

from collections.abc import Callable
from typing import Final, TypeVar

from hypothesis import strategies as st

from ledger.facts import (
    Attempt,
    Cordon,
    EarlierAttempt,
    Facts,
    Gpu,
    Node,
    Override,
    Period,
    Rollback,
    Slow,
    StandingMove,
    Steps,
    Use,
    Wait,
)
from muster.domain.states import Cause, Standing

T = TypeVar("T")
START_MS: Final = 1_000
END_MS: Final = 1_100
FAR_MS: Final = 40_000_000
"""Beyond any attempt: a host's clock that is wrong by hours."""
NODES: Final = ("node_a", "node_b")
ATTEMPTS: Final = ("attempt_a", "attempt_b", "attempt_c")
times = st.integers(START_MS - 60, END_MS + 60)
ends = st.none() | times
tokens = st.sampled_from(("", "x", "y"))
evidence = st.sampled_from(((), ("e1",), ("e2", "e3")))
host_times = times | st.sampled_from((-FAR_MS, FAR_MS))


def some(of: st.SearchStrategy[T], most: int = 3) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(of, max_size=most).map(tuple)


def _ordered(make: Callable[..., T]) -> Callable[..., T]:
    """Order the first two times of a fact, of which the second may be open."""

    def made(start_ms: int, end_ms: int | None, *rest: object) -> T:
        if end_ms is not None and end_ms < start_ms:
            start_ms, end_ms = end_ms, start_ms
        return make(start_ms, end_ms, *rest)

    return made


periods = st.builds(_ordered(Period), times, ends, tokens, evidence)
host_periods = st.builds(_ordered(Period), host_times, st.none() | host_times, tokens, evidence)
cordons = st.builds(_ordered(Cordon), times, ends, tokens, tokens, st.booleans())
moves = st.builds(StandingMove, times, st.sampled_from(Standing), tokens, evidence, st.integers(0, 2))
overrides = st.builds(_ordered(Override), times, times, st.sampled_from(Standing), tokens)
uses = st.builds(Use, st.sampled_from((*ATTEMPTS, "attempt_unknown")), times, ends, ends)
steps = st.builds(
    lambda first, num, end_ms, took_ms, save_ms: Steps(first, first + num, end_ms, took_ms, save_ms),
    st.integers(0, 30),
    st.integers(0, 5),
    host_times,
    st.integers(0, 80),
    st.integers(0, 20),
)
rollbacks = st.builds(Rollback, times, st.integers(0, 30), st.integers(0, 30), tokens, st.none() | times, evidence)
slow = st.builds(_ordered(Slow), times, ends, tokens, tokens, st.none() | st.integers(0, 20))
earlier = st.builds(
    EarlierAttempt,
    st.integers(1, 3),
    st.integers(0, 30),
    st.sampled_from(Cause),
    evidence,
    st.none() | st.integers(0, 80),
)
gpus = st.builds(
    Gpu,
    gpu_uuid=st.sampled_from(tuple(f"GPU-{number}" for number in range(4))),
    node_id=st.sampled_from(NODES),
    model=st.sampled_from(("h100", "h200")),
    cohort_key=st.sampled_from(("c1", "c2")),
    from_ms=times,
    until_ms=ends,
    moves=some(moves),
    overrides=some(overrides, 2),
    cordons=some(cordons, 2),
    burn_ins=some(periods, 2),
    repairs=some(periods, 2),
    holds=some(periods, 2),
    spares=some(periods, 2),
    uses=some(uses),
)


def attempts(attempt_id: str) -> st.SearchStrategy[Attempt]:
    return st.builds(
        Attempt,
        attempt_id=st.just(attempt_id),
        placed_ms=times,
        job_id=st.just(f"job_of_{attempt_id}"),
        tenant_id=st.sampled_from(("tenant_a", "tenant_b")),
        tier=tokens,
        job_class=st.none() | tokens,
        claimed_ms=ends,
        running_ms=ends,
        first_step_ms=st.none() | host_times,
        stopping_ms=ends,
        ended_ms=ends,
        known_until_ms=ends,
        end_cause=st.none() | st.sampled_from(Cause),
        evidence=evidence,
        has_reports=st.booleans(),
        steps=some(steps, 6),
        saves=some(host_periods, 2),
        restores=some(host_periods, 2),
        rollbacks=some(rollbacks, 2),
        hangs=some(periods, 2),
        slow=some(slow, 2),
        earlier=some(earlier),
    )


def nodes(node_id: str) -> st.SearchStrategy[Node]:
    return st.builds(
        Node,
        st.just(node_id),
        st.none() | tokens,
        st.none() | tokens,
        some(cordons, 2),
        some(periods, 2),
        st.sampled_from(("", "g1")),
    )


facts = st.builds(
    Facts,
    start_ms=st.just(START_MS),
    end_ms=st.just(END_MS),
    gpus=some(gpus, 4),
    nodes=st.fixed_dictionaries({node_id: nodes(node_id) for node_id in NODES}),
    attempts=st.fixed_dictionaries({attempt_id: attempts(attempt_id) for attempt_id in ATTEMPTS}),
    waits=some(st.builds(_ordered(Wait), times, ends, tokens, st.sampled_from(("", "g1"))), 2),
)
