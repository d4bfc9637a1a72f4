"""Check of copies between saves and before each: one digest a group of ranks, compared in each step's own exchange.

A rank sends a digest ``d`` and its complement ``~d``; of both, all ranks get the highest. The highest complement is the
complement of the lowest digest, so the two show whether all are alike. Only if not do ranks compare parts of the group
in the same way, and send the digests by tensor of the parts that differ.

By default checks may cost 0.5 % of the time: each rank measures what one takes, and the next comes after so many steps
that the share holds on the slowest rank. They cost 0.25 % where that suffices for a check every two seconds: more
frequent checks would save too few steps to be worth the time. Digests are computed between two steps, in the order of
the device's stream, so no optimizer changes a tensor meanwhile. On a GPU they are read one step later, and only a save
waits for them.
"""

from __future__ import annotations

import array
import dataclasses
import hashlib
import math
import time
from typing import TYPE_CHECKING, Any

import torch

from muster.train.values import digests, replica_judge
from muster.train.values.replica_judge import History, Judged, ReplicaFault, Table, Unlike

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from muster.train.parallel.ranks import Agreement
    from muster.train.values.copies import Copies, Copy, Group

AUTO = "auto"
SHARE = 0.005
"""Share of the time that checks may take if the program states no number of steps: half of what all sensors may."""
OFTEN_S = 2.0
"""Where half of ``SHARE`` does not suffice for a check in so many seconds, checks take more, up to ``SHARE``."""
_ABSENT = -(1 << 63)
_HALF = 1 << 63
_MOST_STEPS = 1 << 40
_PARTS = 64
_PARTS_AT_ONCE = 8
Part = tuple["Group | None", int]


class ReplicaError(Exception):
    """Copies on several ranks differ. The state must not be saved."""

    def __init__(self, fault: ReplicaFault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def require_every(every: int | str) -> int | None:
    """Return the steps from check to check; None: as many as the cost allows. Raises ValueError."""
    if every == AUTO:
        return None
    if isinstance(every, bool) or not isinstance(every, int) or every < 0:
        raise ValueError(f"check_replicas_every={every!r}: must be a number of steps, 0 for never, or {AUTO!r}")
    return every


class ReplicaCheck:
    """Check of one rank. All ranks call ``begin``, then ``figures`` and ``agree`` after each step.

    ``agreed_step``: the step of the last check at which all copies were alike; -1: there was none.
    """

    def __init__(
        self, copies: Copies, ranks: Agreement, every: int | None, *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.agreed_step = -1
        self._copies = copies
        self._ranks = ranks
        self._every = every
        self._now = now
        self._is_on = ranks.world_size > 1 and every != 0
        self._slots: list[Group | None] = []  # None: a group without this rank
        self._is_read_late = False
        self._checked_again_at = 0
        self._names: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._left_out: set[int] = set()
        self._accused: set[int] = set()
        self._histories: dict[int, History] = {}
        self._pending: _Taken | None = None
        self._next_at = 0
        self._last_at = 0
        self._cost_s = 0.0
        self._step_s = 0.0

    def begin(self, step: int) -> None:
        """Agree on the groups, and compare once. Copies that differ already are none."""
        if not self._is_on:
            return
        own = {self._key_of(group): group for group in self._copies.groups()}
        told = self._ranks.gather(tuple(own))  # not the groups: each may have as many ranks as there are
        self._slots = [own.get(key) for key in sorted({key for keys in told for key in keys})]
        self._is_on = bool(self._slots)
        if self._is_on:
            taken = self._compare_now(step)
            self._is_read_late = bool(self._ranks.max([taken.is_on_gpu])[0])
            self._next_at = step + 1

    def _key_of(self, group: Group) -> int:
        """Return a number for a group; 0 for all ranks."""
        if len(group) == self._ranks.world_size:
            return 0
        packed = array.array("Q", group).tobytes()
        return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") | 1

    def note_step(self, step_s: float) -> None:
        self._step_s = step_s if self._step_s == 0 else 0.9 * self._step_s + 0.1 * step_s

    def figures(self, step: int) -> list[int]:
        """Return figures of which all ranks take the highest: the next check's step, then two for each group of ranks
        if digests were taken and are to be read now, on all ranks alike.
        """
        if not self._is_on:
            return []
        pending = self._pending
        if pending is None and self._is_due(step):
            self._pending = pending = self._take(step)
            if self._is_read_late:  # with the next step, as a GPU computes them meanwhile
                pending = None
        return [self._proposal(step), *([] if pending is None else self._of_groups(pending))]

    def agree(self, highest: Sequence[int]) -> None:
        """Judge the digests of all ranks. Raises ReplicaError on every rank."""
        if not self._is_on:
            return
        self._next_at, *of_groups = highest
        taken = self._pending
        if taken is None or not of_groups:
            return
        self._judge(taken, of_groups)

    def before_save(self, step: int) -> None:
        """Compare before a save, unless this step was compared. Raises ReplicaError on every rank."""
        if self._is_on and self.agreed_step != step:
            self._compare_now(step)

    def rolled_back(self, step: int, fault: ReplicaFault | None) -> None:
        """Forget the checks after ``step``, whose state is restored."""
        self._pending = None
        if self._is_on:
            self._next_at = self._last_at = step
            self.agreed_step = min(self.agreed_step, step)
            if fault is not None:
                self._checked_again_at = fault.step
                self._compare_now(step)

    def _compare_now(self, step: int) -> _Taken:
        taken, self._pending = self._pending, None
        if taken is None or taken.step != step:
            taken = self._take(step)
        self._pending = taken
        self._judge(taken, self._ranks.max(self._of_groups(taken)))
        return taken

    def _is_due(self, step: int) -> bool:
        if step == self.agreed_step:
            return False
        return step >= self._next_at if self._every is None else step % self._every == 0

    def _proposal(self, step: int) -> int:
        if self._every is not None:
            return 0
        if self._step_s == 0:
            return step + 1
        least_s = self._cost_s / SHARE
        interval_s = max(least_s, min(2 * least_s, OFTEN_S))
        following = self._last_at + max(1, math.ceil(interval_s / self._step_s))
        if self._last_at < self._checked_again_at:  # a re-run is compared where it was the first time
            return self._checked_again_at
        return min(following, _MOST_STEPS)

    def _take(self, step: int) -> _Taken:
        began = self._now()
        named = ((self._id_of(copy.name), copy) for copy in self._copies)
        taken = _Taken(step, {name: copy for name, copy in named if name not in self._left_out})
        if not taken.is_on_gpu:
            taken.read()
        self._cost_s, self._last_at = self._now() - began, step
        return taken

    def _id_of(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = found = digests.name_digest(name)
            self._names[found] = name
        return self._ids[name]

    def _of_groups(self, taken: _Taken) -> list[int]:
        combined = taken.combined()
        if taken.is_on_gpu:
            self._cost_s = max(self._cost_s, taken.gpu_s)
        return _figures_of(map(combined.get, self._slots))

    def _judge(self, taken: _Taken, of_groups: Sequence[int]) -> None:
        self._pending = None
        unlike = _unlike(of_groups)
        if not unlike:
            self._note_agreed(taken, set())
            return
        judged = Judged()
        for parts in self._unlike_parts(taken, unlike):
            tables = [_table_of(told) for told in self._ranks.gather(taken.packed(parts))]
            self._judge_part(taken, tables, {name: taken.groups[name] for name in taken.names_in(parts)}, judged)
        order = {name: place for place, name in enumerate(taken.copies)}
        judged.faults.sort(key=lambda fault: order[fault.name])
        if judged.faults and all(taken.copies[fault.name].is_buffer for fault in judged.faults):
            # Unlike again, a buffer is the program's own, whether it was rolled back or not.
            self._accused.update(fault.name for fault in judged.faults)
        told = [each for each in self._ranks.gather(self._summary_of(taken, judged)) if each is not None]
        if not told:
            self._note_agreed(taken, judged.left_out)
            return
        first = next((each for each in told if each.ranks), told[0])
        ranks = tuple(sorted({rank for each in told for rank in each.ranks}))
        raise ReplicaError(
            dataclasses.replace(
                first,
                ranks=ranks,
                num_tensors=max(each.num_tensors for each in told),
                step=taken.step,
                since=self.agreed_step,
                is_of_buffers=all(each.is_of_buffers for each in told),
            )
        )

    def _unlike_parts(self, taken: _Taken, slots: Sequence[int]) -> Iterator[frozenset[Part]]:
        """Yield the parts of groups whose tensors differ, a few at once: no message holds all digests of a model.

        A group's tensors are in ``_PARTS`` parts by their names, each with a digest of its own.
        """
        own = taken.combined_parts()
        places = [(self._slots[slot], part) for slot in slots for part in range(_PARTS)]
        unlike = [places[place] for place in _unlike(self._ranks.max(_figures_of(map(own.get, places))))]
        for first in range(0, len(unlike), _PARTS_AT_ONCE):
            yield frozenset(unlike[first : first + _PARTS_AT_ONCE])

    def _summary_of(self, taken: _Taken, judged: Judged) -> ReplicaFault | None:
        """Return what this rank has found among its own copies."""
        if not judged.faults:
            return None
        first = next((fault for fault in judged.faults if fault.culprits), judged.faults[0])
        ranks = replica_judge.named(judged.faults)
        of_buffers = all(taken.copies[fault.name].is_buffer for fault in judged.faults)
        name = self._names[first.name]
        return ReplicaFault(ranks, first.group, name, len(judged.faults), step=0, since=0, is_of_buffers=of_buffers)

    def _judge_part(self, taken: _Taken, tables: Sequence[Table], groups: Mapping[int, Group], judged: Judged) -> None:
        """Judge the tensors in ``groups`` by the digests of all ranks."""
        for name, by_rank in replica_judge.unlike(tables, groups):
            copy, history = taken.copies[name], self._histories.get(name, History())
            is_known = history.is_known(is_sure=copy.is_sure, is_buffer=copy.is_buffer)
            if is_known and not copy.is_own and name not in self._accused:
                judged.faults.append(Unlike(name, copy.group, replica_judge.culprits(by_rank, history)))
            else:
                judged.left_out.add(name)

    def _note_agreed(self, taken: _Taken, left_out: set[int]) -> None:
        self._left_out |= left_out
        self.agreed_step = taken.step
        for name, digest in taken.table.items():
            if name not in left_out:
                history = self._histories.get(name)
                if history is None:
                    history = self._histories[name] = History()
                history.note_agreed(digest)


class _Taken:
    """Digests of one rank after one step. ``table``: by name, after ``read``."""

    def __init__(self, step: int, copies: dict[int, Copy]) -> None:
        """Begin the digests of ``copies``."""
        self.step = step
        self.copies = copies
        self.table: Table = {}
        self.is_on_gpu = any(copy.values.is_cuda for copy in copies.values())
        self.gpu_s = 0.0
        self._events: list[Any] = []
        self._mark()
        self._begun: digests.Begun | None = digests.begun([copy.values for copy in copies.values()])
        self._mark()

    @property
    def groups(self) -> Mapping[int, Group]:
        return {name: copy.group for name, copy in self.copies.items()}

    def _mark(self) -> None:
        if self.is_on_gpu:
            event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)

    def read(self) -> None:
        if self._begun is None:
            return
        if self._events:
            self._events[1].synchronize()
            self.gpu_s = self._events[0].elapsed_time(self._events[1]) / 1000
        self.table = dict(zip(self.copies, digests.read([self._begun]), strict=True))
        self._begun = None

    def combined(self) -> dict[Group | None, int]:
        """Return one digest a group, in which each tensor counts by its name."""
        self.read()
        groups: dict[int, Group] = {}  # by identity: a group may have thousands of ranks, and is hashed once
        sums: dict[int, int] = {}
        for name, digest in self.table.items():
            group = self.copies[name].group
            groups[id(group)] = group
            sums[id(group)] = sums.get(id(group), 0) + digests.share_of(name, digest)
        found: dict[Group | None, int] = {}
        for number, group in groups.items():
            found[group] = (found.get(group, 0) + sums[number]) & digests.MASK
        return found

    def combined_parts(self) -> dict[Part, int]:
        """Return one digest a part of a group, in which each tensor counts by its name."""
        found: dict[Part, int] = {}
        for name, digest in self.table.items():
            part = _part_of(name, self.copies[name].group)
            found[part] = (found.get(part, 0) + digests.share_of(name, digest)) & digests.MASK
        return found

    def names_in(self, parts: Container[Part]) -> list[int]:
        """Return the tensors of some parts, in order."""
        return [name for name, copy in self.copies.items() if _part_of(name, copy.group) in parts]

    def packed(self, parts: Container[Part]) -> tuple[bytes, bytes]:
        """Return the names and digests of the tensors of some parts."""
        names = self.names_in(parts)
        return array.array("Q", names).tobytes(), array.array("Q", [self.table[name] for name in names]).tobytes()


def _part_of(name: int, group: Group) -> Part:
    return group, name % _PARTS


def _figures_of(each: Iterable[int | None]) -> list[int]:
    """Return digests and their complements, by pairs, of which all ranks take the highest. None: not of this rank."""
    found = []
    for digest in each:
        own = _ABSENT if digest is None else max(digest - _HALF, _ABSENT + 1)
        found += [own, _ABSENT if digest is None else ~own]
    return found


def _unlike(highest: Sequence[int]) -> list[int]:
    """Return the places of the digests that differ. ``highest``: by pairs, of the digest and of its complement."""
    pairs = zip(highest[0::2], highest[1::2], strict=True)
    return [place for place, (most, least) in enumerate(pairs) if most not in {~least, _ABSENT}]


def _table_of(packed: tuple[bytes, bytes]) -> Table:
    names, values = array.array("Q"), array.array("Q")
    names.frombytes(packed[0])
    values.frombytes(packed[1])
    return dict(zip(names, values, strict=True))
