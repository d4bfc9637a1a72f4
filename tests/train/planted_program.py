"""A runtime with a fault of old planted in it: random numbers are saved under one name, so rank 1 saves rank 0's."""

import os
from typing import Any

from muster.train.checkpoint import state
from muster.train.runtime import rng as chance
from tests.train import tiny_program

part_of = state.part_of


def part_with_the_first_ranks_numbers(
    trained: state.Trained, rng: dict[str, Any], *, rank: int, world_size: int, is_compared: bool = False
) -> dict[str, Any]:
    part = part_of(trained, rng, rank=rank, world_size=world_size, is_compared=is_compared)
    if rank == 1:
        own = chance.rng_state()
        chance.seed_rank(5, 0)
        part["rng"] = chance.rng_state()
        chance.set_random_state(own)
    return part


if __name__ == "__main__":
    assert "RANK" in os.environ, "it is one of several"
    state.part_of = part_with_the_first_ranks_numbers
    tiny_program.main()
