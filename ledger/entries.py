"""Entries of the ledger as they are stored: time of GPUs of one host that have all but the GPU in common."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ledger.accounts import Account


class UnbalancedError(AssertionError):
    """I27: the entries of a GPU are not exactly the time for which it was enrolled. A fault of Muster."""


class Heading(NamedTuple):
    """What the time of an entry has in common. Empty texts: there is none; None: it is not known."""

    node_id: str
    account: Account
    attempt_id: str
    cause: str
    evidence: tuple[str, ...]
    model: str
    cohort_key: str
    rack: str | None = None
    site: str | None = None
    job_id: str = ""
    tenant_id: str = ""
    tier: str = ""
    job_class: str | None = None


class _Place(NamedTuple):
    node_id: str
    model: str
    cohort_key: str
    rack: str | None
    site: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """``gpus`` with the milliseconds of each. They are negative only in corrections."""

    heading: Heading
    gpus: tuple[str, ...]
    gpu_ms: tuple[int, ...]

    @property
    def num_ms(self) -> int:
        return sum(self.gpu_ms)


def corrections(old: Iterable[Entry], new: Iterable[Entry]) -> list[Entry]:
    """Return what must be added to ``old`` to get ``new``: signed, and 0 in sum for each GPU.

    ``old``: the entries of an hour's closing with all corrections so far. Their order does not matter.

    Raises:
        UnbalancedError: a GPU would have more or less time than before.
    """
    differences: dict[Heading, dict[str, int]] = {}
    for sign, entries in ((-1, old), (1, new)):
        for entry in entries:
            of_heading = differences.setdefault(entry.heading, {})
            for gpu, num_ms in zip(entry.gpus, entry.gpu_ms, strict=True):
                of_heading[gpu] = of_heading.get(gpu, 0) + sign * num_ms
    _require_balance(differences.values())
    found = ((heading, sorted((gpu, ms) for gpu, ms in own.items() if ms)) for heading, own in differences.items())
    made = [Entry(heading, tuple(gpu for gpu, _ in own), tuple(ms for _, ms in own)) for heading, own in found if own]
    return sorted(made, key=_place)


def in_old_places(old: Iterable[Entry], new: Iterable[Entry]) -> list[Entry]:
    """Return ``new`` with the host, model, cohort, rack and site of each GPU as in ``old``: as they were in that hour.

    A host that has another label since, or a GPU that came to another host since, is no reason for a correction.
    """
    places: dict[str, set[_Place]] = {}
    for entry in old:
        for gpu in entry.gpus:
            places.setdefault(gpu, set()).add(_place_of(entry.heading))
    found: dict[Heading, list[tuple[str, int]]] = {}
    for entry in new:
        for gpu, num_ms in zip(entry.gpus, entry.gpu_ms, strict=True):
            before = places.get(gpu, ())
            place = next(iter(before)) if len(before) == 1 else _place_of(entry.heading)
            found.setdefault(entry.heading._replace(**place._asdict()), []).append((gpu, num_ms))
    return [Entry(head, tuple(gpu for gpu, _ in own), tuple(ms for _, ms in own)) for head, own in found.items()]


def total(entries: Iterable[Entry]) -> dict[tuple[Heading, str], int]:
    """Return the milliseconds of each GPU under each heading, corrections included; none of them is 0."""
    found: dict[tuple[Heading, str], int] = {}
    for entry in entries:
        for gpu, num_ms in zip(entry.gpus, entry.gpu_ms, strict=True):
            found[entry.heading, gpu] = found.get((entry.heading, gpu), 0) + num_ms
    return {key: num_ms for key, num_ms in found.items() if num_ms}


def _place_of(heading: Heading) -> _Place:
    return _Place(heading.node_id, heading.model, heading.cohort_key, heading.rack, heading.site)


def _require_balance(differences: Iterable[dict[str, int]]) -> None:
    of_gpu: dict[str, int] = {}
    for own in differences:
        for gpu, num_ms in own.items():
            of_gpu[gpu] = of_gpu.get(gpu, 0) + num_ms
    for gpu, num_ms in of_gpu.items():
        if num_ms:
            raise UnbalancedError(f"I27: corrections would change the time of GPU {gpu} by {num_ms} ms")


def _place(entry: Entry) -> tuple[tuple[tuple[bool, str], ...], tuple[str, ...]]:
    head = entry.heading
    texts = tuple((text is not None, text or "") for text in (*head[:4], *head[5:]))
    return texts, head.evidence
