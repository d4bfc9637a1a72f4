"""The sizes of an elastic gang: what its submission allows, and what was asked of it since."""

from dataclasses import dataclass

from muster.domain.job.spec import Shape


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of hosts: ``fewest`` ≤ ``preferred`` ≤ ``most``. One that is not elastic has one number."""

    fewest: int
    preferred: int
    most: int


def sizes_of(shape: Shape, requested: int | None) -> Sizes:
    """Return the numbers of hosts that the job can run on.

    ``requested``: the number that was requested while the job ran. It is the preferred number from then on, and the
    maximum.
    """
    if requested is None:
        return Sizes(shape.sizes[0], shape.nodes, shape.sizes[-1])
    return Sizes(shape.sizes[0], requested, requested)


def pieces(shape: Shape, num_nodes: int) -> int:
    """Return into how many times as many pieces a batch is divided on fewer hosts than the shape has.

    A program that keeps its global batch (``run.share_of``) then needs no more memory than on all hosts.
    """
    return max(1, -(-shape.nodes // num_nodes))
