"""How many bytes a part comes to by its tensors, held against what torch writes of it."""

import importlib.util
import io
import random
from typing import Any

import pytest

from tests.train.marks import TRAINS

pytestmark = TRAINS
if importlib.util.find_spec("torch") is not None:
    import torch

    from muster.train.checkpoint import state, volume
    from muster.train.checkpoint.continuity import volume_anomaly
    from muster.train.runtime import rng as chance
    from muster.train.runtime.durable_files import HashingFile


def written(part: dict[str, Any]) -> int:
    file = HashingFile(io.BytesIO())
    state.dump(part, file)
    return file.size


def trained(width: int = 64) -> "state.Trained":
    """With tied weights, a buffer, and an optimizer that has made a step."""
    first, second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
    model = torch.nn.Sequential(first, torch.nn.BatchNorm1d(width), second)
    second.weight = first.weight
    optimizer = torch.optim.AdamW(model.parameters())
    torch.autograd.backward(model(torch.randn(4, width)).sum())
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return state.Trained(model, optimizer, scheduler, {})


def parts(of: "state.Trained", world_size: int) -> list[dict[str, Any]]:
    rng = chance.rng_state()
    return [state.part_of(of, rng, rank=rank, world_size=world_size) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_what_is_saved_of_any_state_is_as_large_as_its_tensors(world_size: int) -> None:
    whole = trained(200)
    found = parts(whole, world_size)
    sizes, volumes = [written(part) for part in found], [volume.of_part(part) for part in found]
    assert volume_anomaly(sizes, volumes, volume.of_state(whole)) == ""
    assert sum(each.least_bytes for each in volumes) > 0.5 * sum(sizes), "it says something"


def test_a_parameter_or_a_moment_that_no_rank_saves_is_missed_to_the_byte() -> None:
    whole = trained()
    expected = volume.of_state(whole)
    for is_moment in (False, True):
        found = parts(whole, 2)
        room = found[1]["optimizer"]["state"] if is_moment else found[1]["model"]
        room.pop(next(iter(room)))
        volumes = [volume.of_part(part) for part in found]
        words = volume_anomaly([written(part) for part in found], volumes, expected)
        assert f"of model and optimizer, whose tensors are {expected:,}, each once" in words


def test_a_part_that_two_ranks_save_is_found() -> None:
    whole = trained()
    found = parts(whole, 2)
    found[0]["model"] |= found[1]["model"]
    volumes = [volume.of_part(part) for part in found]
    assert volume_anomaly([written(part) for part in found], volumes, volume.of_state(whole)) != ""


def test_a_view_that_drags_its_storage_along_is_found_and_one_that_shares_it_is_not() -> None:
    whole = trained()
    base = torch.zeros(1_000_000)
    cases = (({"all": base, "some": base[:10]}, ""), ({"some": base[:10]}, "a view of something larger?"))
    for extra, word in cases:
        part = {**parts(whole, 1)[0], "stateful": {"extra mine": extra}}
        words = volume_anomaly([written(part)], [volume.of_part(part)], volume.of_state(whole))
        assert words.endswith(word) if word else words == ""


def test_plain_values_of_any_kind_do_not_make_a_file_too_large() -> None:
    chosen = random.Random(5)  # noqa: S311  # no secret
    kept = {
        "numbers": [chosen.randrange(2**60) for _ in range(100_000)],
        "floats": tuple(chosen.random() for _ in range(100_000)),
        "words": {f"{chosen.random()} ü": number for number in range(50_000)},
        "bytes": [chosen.randbytes(30) for _ in range(50_000)],
    }
    part = {**parts(trained(), 1)[0], "stateful": {"extra kept": kept}}
    assert volume_anomaly([written(part)], [volume.of_part(part)], None) == ""


def test_of_sparse_tensors_none_states_how_large_they_are_in_a_file() -> None:
    part = {**parts(trained(), 1)[0], "stateful": {"extra sparse": {"values": torch.eye(300).to_sparse()}}}
    found = volume.of_part(part)
    assert found.most_bytes is None
    assert volume_anomaly([written(part)], [found], None) == ""
