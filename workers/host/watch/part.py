"""One host's part of an attempt as the watch needs it: its folder, its ranks and where it runs."""

from dataclasses import dataclass
from pathlib import Path

from workers.host.supervisor import files


@dataclass(frozen=True, slots=True)
class Part:
    """A part. ``ranks``: global numbers. ``gpus``: all of it; by local rank if there are as many.

    ``is_hidden``: an engine's daemon starts the program, so it is no descendant of the supervisor. ``log_bytes``: what
    the log of a rank holds at most; 0 if unknown.
    """

    folder: Path
    node: str
    ranks: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    is_hidden: bool = False
    log_bytes: int = 0

    @classmethod
    def of(cls, folder: Path) -> "Part | None":
        """Read it from its order; None if there is no order that can be read."""
        order = files.read_json(folder / files.ORDER)
        if order is None:
            return None
        try:
            width, node_rank = int(order["ranks_per_node"]), int(order["node_rank"])
            gpus = tuple(str(gpu) for gpu in order["gpus"])
            node = str(order["node_id"])
            log_bytes = int(order.get("log_limit_bytes_per_stream", 0))
        except (KeyError, TypeError, ValueError):
            return None
        first = node_rank * width
        ranks = tuple(range(first, first + width))
        return cls(folder, node, ranks, gpus, _is_hidden(order.get("container")), log_bytes)

    @property
    def marks(self) -> tuple[str, str]:
        """The environment of every process of this part."""
        return f"MUSTER_ATTEMPT_ID={self.folder.name}", f"MUSTER_NODE_ID={self.node}"

    def gpu_of(self, rank: int) -> str:
        """Return the rank's own GPU; empty if it has none of its own."""
        return self.gpus[rank - self.ranks[0]] if len(self.gpus) == len(self.ranks) else ""

    def gpus_of(self, rank: int) -> tuple[str, ...]:
        """Return the GPUs that the rank may use."""
        own = self.gpu_of(rank)
        return (own,) if own else self.gpus


def _is_hidden(container: object) -> bool:
    """Return whether the order's container is one of docker or podman; enroot runs its program below the supervisor."""
    if not isinstance(container, dict):
        return False
    engine, image = container.get("engine"), str(container.get("image", ""))
    return engine != "enroot" if engine else not image.startswith("/")
