"""Parts of an order that state one thing each: limits, mounts, the container, the preparation."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_PREPARATION_NAMES = {"only_look": "is_preflight_only", "meets": "has_pairwise_check"}
"""Keys of the preparation in ``order.json``, which stay as in the release before, and their names here."""


class HostLimits:
    """Limits of the part on its host; None is without limit.

    ``cpus`` counts whole ones and parts of one, ``io_…`` bytes a second of each disk.
    """

    __slots__ = ("cpus", "io_read_bytes_per_s", "io_write_bytes_per_s", "memory_bytes", "pids")

    def __init__(
        self,
        memory_bytes: int | None = None,
        pids: int | None = None,
        cpus: float | None = None,
        io_read_bytes_per_s: int | None = None,
        io_write_bytes_per_s: int | None = None,
    ) -> None:
        self.memory_bytes = None if memory_bytes is None else int(memory_bytes)
        self.pids = None if pids is None else int(pids)
        self.cpus = None if cpus is None else float(cpus)
        self.io_read_bytes_per_s = None if io_read_bytes_per_s is None else int(io_read_bytes_per_s)
        self.io_write_bytes_per_s = None if io_write_bytes_per_s is None else int(io_write_bytes_per_s)

    @property
    def has_io(self) -> bool:
        return self.io_read_bytes_per_s is not None or self.io_write_bytes_per_s is not None


class Mount:
    """Path of the host, visible inside at ``target``."""

    __slots__ = ("is_read_only", "source", "target")

    def __init__(self, source: str, target: str | None = None, *, read_only: bool = True) -> None:
        self.source = str(source)
        self.target = str(target or source)
        self.is_read_only = bool(read_only)


class Container:
    """Container of the job. ``engine`` None: what the host has. ``user``: ``uid:gid``, or None for the supervisor's
    own.
    """

    __slots__ = ("engine", "image", "mounts", "user")

    def __init__(
        self,
        image: str,
        engine: str | None = None,
        mounts: Sequence[dict[str, Any]] = (),
        user: str | None = None,
    ) -> None:
        self.image = str(image)
        self.engine = engine
        self.mounts = [Mount(**mount) for mount in mounts]
        self.user = user


class Preparation:
    """Preparation of a host that reports ready, and waits for its go. ``disk_free_bytes``: free where the program
    writes.

    ``quick_check_s``: for how long the GPUs compute known sums first, by ``python``; 0: not at all. ``is_simulated``:
    no driver knows the GPUs. ``is_preflight_only``: before any placement; the program never starts.
    ``has_pairwise_check``: the part takes part in all-gathers with other hosts until its go.
    """

    __slots__ = (
        "disk_free_bytes",
        "has_pairwise_check",
        "is_preflight_only",
        "is_simulated",
        "python",
        "quick_check_s",
    )

    def __init__(
        self,
        disk_free_bytes: int = 0,
        quick_check_s: float = 0.0,
        python: str = "",
        *,
        is_simulated: bool = False,
        is_preflight_only: bool = False,
        has_pairwise_check: bool = False,
    ) -> None:
        self.disk_free_bytes = int(disk_free_bytes)
        self.quick_check_s = float(quick_check_s)
        self.python = str(python)
        self.is_simulated = bool(is_simulated)
        self.is_preflight_only = bool(is_preflight_only)
        self.has_pairwise_check = bool(has_pairwise_check)

    @classmethod
    def read(cls, document: dict[str, Any]) -> Preparation:
        """Read the preparation of ``order.json``. Raises TypeError for an unknown key."""
        return cls(**{_PREPARATION_NAMES.get(key, key): found for key, found in document.items()})
