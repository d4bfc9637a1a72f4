"""The sizes of an elastic gang: what its submission allows, and what was asked of it since."""

from dataclasses import dataclass

from muster.domain.job_spec import Shape


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of hosts: ``fewest`` ≤ ``wished`` ≤ ``most``. One that is not elastic has one number."""

    fewest: int
    wished: int
    most: int


def sizes_of(shape: Shape, asked: int | None) -> Sizes:
    """``asked``: what was asked for while it ran: its wish from then on, and the most that it takes."""
    if asked is None:
        return Sizes(shape.sizes[0], shape.nodes, shape.sizes[-1])
    return Sizes(shape.sizes[0], asked, asked)


def pieces(shape: Shape, num_nodes: int) -> int:
    """In how many times as many pieces a batch is taken on fewer hosts than were wished for.

    So that a program which keeps its global batch (``run.share_of``) needs no more memory than on those.
    """
    return max(1, -(-shape.nodes // num_nodes))
