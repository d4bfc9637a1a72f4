"""One sum over the later jobs shows which jobs enough work overtook."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.traces.passing import PassedWork

SPAN = st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 9))
"""Of each job: when it starts, how long it runs, its GPUs."""


@given(st.lists(SPAN, min_size=1, max_size=12), st.integers(1, 400))
def test_all_before_the_first_spared_were_passed_by_the_bound_and_it_was_not(
    spans: list[tuple[int, int, int]], bound_gpu_s: int
) -> None:
    passed = PassedWork(len(spans), bound_gpu_s)
    moments = [(at + took, 0, number, gpus) for number, (at, took, gpus) in enumerate(spans)]
    moments += [(at, 1, number, gpus) for number, (at, _, gpus) in enumerate(spans)]
    before = 0
    for now, is_start, number, gpus in sorted(moments):
        (passed.starts if is_start else passed.ends)(number, gpus, now)
        first = passed.advance(now)
        done = [gpus * max(min(now, at + took) - at, 0) for at, took, gpus in spans]
        counted = [sum(done[one + 1 :]) for one in range(len(spans))]
        assert all(work >= bound_gpu_s for work in counted[:first])
        assert counted[first] < bound_gpu_s
        assert first >= before, "what was done is never undone"
        before = first
