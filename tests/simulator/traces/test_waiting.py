"""The queue as a table has the same values as the jobs themselves, whichever come, go and come back."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.traces.jobs import TraceJob
from simulator.traces.waiting import Waiting

JOBS = [TraceJob(10.0 * number, 100.0, 8, 1 + number % 3, 1 + number % 8) for number in range(12)]
ESTIMATES = [50.0 + 40 * number for number in range(12)]


@given(st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=60))
def test_each_column_reports_of_those_what_wait_in_order_of_submission(steps: list[tuple[int, bool]]) -> None:
    waiting, believed, again = Waiting(JOBS, ESTIMATES), dict(enumerate(ESTIMATES)), set[int]()
    there: set[int] = set()
    for number, comes_back in steps:
        if number in there:
            waiting.remove(number)
            there.discard(number)
        elif comes_back:
            believed[number] /= 2
            again.add(number)
            waiting.add_again(number, believed[number])
            there.add(number)
        else:
            waiting.add(number)
            there.add(number)
        numbers = sorted(there)
        assert waiting.numbers == numbers
        assert waiting.submitted_s.tolist() == [JOBS[one].submit_s for one in numbers]
        assert waiting.estimates_s.tolist() == [believed[one] for one in numbers]
        assert waiting.expected_s.tolist() == [max(believed[one], 60) for one in numbers]
        assert waiting.num_nodes.tolist() == [JOBS[one].num_nodes for one in numbers]
        assert waiting.gpus_per_node.tolist() == [JOBS[one].gpus_per_node for one in numbers]
        assert waiting.is_again.tolist() == [one in again for one in numbers]
        by_shape = dict[tuple[int, int], list[float]]()
        for one in sorted(numbers, key=lambda one: believed[one]):
            by_shape.setdefault((JOBS[one].num_nodes, JOBS[one].gpus_per_node), []).append(believed[one])
        assert waiting.estimates_by_shape == by_shape
