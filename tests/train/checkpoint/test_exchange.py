"""What each rank asks of the others' files."""

import pytest

torch = pytest.importorskip("torch", reason="TORCH IS NOT INSTALLED: nothing is asked for")

from muster.train.checkpoint.exchange import _by_entry, _Entry, _Region, _requested_regions  # noqa: E402  # it imports torch
from muster.train.checkpoint.state import Trained  # noqa: E402  # as above


def entry(parameter: int | None, name: str, shape: list[int], offset: int = 0, rows: int | None = None) -> _Entry:
    size = [shape[0] if rows is None else rows, *shape[1:]]
    return _Entry(0, 0, parameter, name, shape, _Region([offset, 0], size), torch.float32, None)


ENTRIES = [entry(None, "weight", [2, 3]), entry(0, "exp_avg", [2, 3]), entry(None, "nobody", [2, 3])]


def test_a_program_without_an_optimizer_requests_none_of_its_state() -> None:
    model = torch.nn.Linear(3, 2, bias=False)
    assert _requested_regions(ENTRIES, Trained(model, None, None, {})) == {0: None, 2: None}
    trains = Trained(model, torch.optim.AdamW(model.parameters()), None, {})
    assert _requested_regions(ENTRIES, trains) == {0: None, 1: None, 2: None}, (
        "what fits nothing here is asked for whole"
    )


def test_preferences_are_gathered_by_what_is_preferred() -> None:
    part = _Region([1, 0], [1, 3])
    assert _by_entry([{0: None}, {0: part, 1: None}, {}], ENTRIES) == {
        0: {0: ENTRIES[0].region, 1: part},
        1: {1: ENTRIES[1].region},
    }
