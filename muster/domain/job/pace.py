"""The speed of a whole job and the parts of its steps, from the newest report of each rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

PARTS: Final = ("data", "forward", "backward", "collective", "optimizer", "other", "checkpoint")
"""Parts of a step in their order; ``checkpoint`` is between steps."""
OWN_PARTS: Final = ("data", "forward", "backward", "optimizer")
"""Parts in which a rank works for itself, where it does not measure that apart."""
UNSEEN_EXCHANGE: Final = (
    "Ranks exchange within the forward and backward pass here, as FSDP and tensor parallelism do: what that took is in "
    "these parts, and there is no figure of it."
)


@dataclass(frozen=True, slots=True)
class Skew:
    """The unevenness of a quantity over the ranks.

    ``ratio`` is the maximum over the mean, ``place`` the rank of the maximum.
    """

    ratio: float
    place: int


@dataclass(frozen=True, slots=True)
class JobPace:
    """The pace of a whole job.

    ``parts``: (name, seconds a step, share of all), the mean over the ranks that reported, without parts that took no
    time. ``unseen``: parts that a rank could not distinguish from the others. ``tokens_per_s`` is of all ranks, ``mfu``
    and ``hfu`` are means: None unless each rank reported. ``memory_mib``: the maximum of the ranks. ``samples`` and
    ``tokens``: the unevenness of a step's shares. ``padding``: the mean of the ranks' shares.
    """

    parts: tuple[tuple[str, float, float], ...]
    unseen: tuple[str, ...]
    tokens_per_s: float | None
    grad_norm: float | None
    memory_mib: float | None
    mfu: float | None
    hfu: float | None
    samples: Skew | None
    tokens: Skew | None
    padding: float | None


def pace_of(paces: Sequence[Mapping[str, Any] | None]) -> JobPace | None:
    """Return the pace of a job, or None where no rank reported.

    ``paces``: the pace of each rank, in rank order.
    """
    known = [pace for pace in paces if pace is not None]
    if not known:
        return None
    means = {part: sum(pace.get(f"{part}_s") or 0.0 for pace in known) / len(known) for part in PARTS}
    whole = sum(means.values())
    parts = tuple((part, seconds, seconds / whole) for part, seconds in means.items() if seconds > 0)
    unseen = tuple(part for part in PARTS if any(pace.get(f"{part}_s", 0.0) is None for pace in known))
    rates = _of_all(paces, "tokens_per_s")
    memories = [pace["memory_mib"] for pace in known if pace.get("memory_mib") is not None]
    return JobPace(
        parts,
        unseen,
        sum(rates) if rates else None,
        known[0].get("grad_norm"),
        max(memories, default=None),
        _mean(_of_all(paces, "mfu")),
        _mean(_of_all(paces, "hfu")),
        skew_of(_of_all(paces, "samples_per_step")),
        skew_of(_of_all(paces, "tokens_per_step")),
        _mean(_of_all(paces, "padding")),
    )


def own_s_of(pace: Mapping[str, Any]) -> float | None:
    """Return a rank's own compute a step: as it measured it, else the sum of the parts in which it works for itself."""
    if pace.get("own_s") is not None:
        return float(pace["own_s"])
    parts = [pace.get(f"{part}_s") for part in OWN_PARTS]
    return None if None in parts else sum(float(part) for part in parts if part is not None)


def wait_s_of(pace: Mapping[str, Any]) -> float | None:
    """Return a rank's wait for others a step: as it measured it, else its time in collectives."""
    wait_s = pace.get("wait_s")
    found = pace.get("collective_s") if wait_s is None else wait_s
    return None if found is None else float(found)


def skew_of(values: Sequence[float]) -> Skew | None:
    """Return the unevenness of ``values``, which are in rank order; None for fewer than two ranks or a sum of zero."""
    if len(values) < 2 or sum(values) <= 0:
        return None
    most = max(values)
    return Skew(most * len(values) / sum(values), values.index(most))


def _of_all(paces: Sequence[Mapping[str, Any] | None], name: str) -> list[float]:
    """Return all ranks' values, or none unless each rank reported one: a sum of some is no rate of the job."""
    found = [pace[name] for pace in paces if pace is not None and pace.get(name) is not None]
    return found if len(found) == len(paces) else []


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
