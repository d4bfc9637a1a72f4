"""The re-run of suspect steps in place, and the part that a run on other GPUs has in one.

After a rollback the program trains on the same samples with the same random numbers as before. So the steps up to the
one at which a fault was found are its re-run, without any code of the program's own::

    restored       fault found             the same step again
    step 20 ------ step 24 --> 20 -------- step 24
                   first result            second result: compared rank by rank (``rerun_judge``)

``MUSTER_RERUN`` is the control plane's offer: a fault that repeats itself bit for bit ends the attempt, and the next
one runs on other GPUs. Its order names the step again, and the control plane compares (``watch.reruns``).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from muster.train.report.wire import MOST_NAMED
from muster.train.reruns.operations import operation_of
from muster.train.reruns.repeatable import Repeatable
from muster.train.reruns.rerun_judge import REPEATED, Compared, Found, Suspected, judge
from muster.train.reruns.results import Journal, Result, compare, settings_digest, state_digest
from muster.train.values import digests
from muster.train.values.replica_check import ReplicaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from muster.train.checkpoint.state import Trained
    from muster.train.parallel.ranks import Agreement
    from muster.train.report.wire import Channel
    from muster.train.reruns.orders import RerunOrder
    from muster.train.runtime.divergence import DivergedError

    Fault = DivergedError | ReplicaError

MOST_RANKS = 32
"""Ranks whose results are sent."""


@dataclass(frozen=True)
class Suspect:
    """Steps that are suspect. ``step``: the one after which the fault was found. ``first_bad``: the first one that is
    not to be trusted. ``first``: this rank's result of the first time; None in an attempt that re-runs them elsewhere.
    """

    step: int
    first_bad: int
    first: Result | None
    fault: Fault | None = None
    since: int = 0


@dataclass(frozen=True)
class _Both:
    """What a rank sends to the others: its comparison of both results, and the result to report."""

    compared: Compared
    result: list[object]


class Rerun:
    """Re-runs of one rank. All ranks make each call together, except for ``end_step``.

    ``is_repeated``: the last fault came again, in place bit for bit, or on other GPUs. ``is_decided``: on other GPUs.
    """

    def __init__(
        self,
        trained: Trained,
        ranks: Agreement,
        channel: Channel,
        order: RerunOrder | None,
        *,
        checked: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """Prepare. ``checked``: a number for what this rank computed in a check of a step, as part of its result."""
        self.is_repeated = self.is_decided = False
        self._is_repeatable = Repeatable()
        self._trained = trained
        self._ranks = ranks
        self._channel = channel
        self._order = order
        self._checked = checked
        self._journal = Journal()
        self._started_at = 0
        self._under_way: Suspect | None = None

    def start(self, step: int) -> None:
        """Begin the steps. An order's re-run begins if the checkpoint is from before its step."""
        self._started_at = step
        order = self._order
        if order is None or order.step is None:
            return
        if step < order.step and order.fits(self._ranks.world_size):
            self._under_way = Suspect(order.step, order.first_bad, None, since=step)
        else:  # another number of ranks has other results, and a later state none of these steps
            self._order = order.done()

    def end_step(self, step: int, loss: float | None) -> None:
        """Record this rank's loss of a step."""
        self._journal.note(step, loss)

    def is_due(self, step: int) -> bool:
        """Return whether the re-run in progress has reached its last step."""
        return self._under_way is not None and step >= self._under_way.step

    def suspect(self, step: int, first_bad: int, fault: Fault) -> Suspect:
        """Return the steps up to this fault with this rank's result. Call it before the state is restored."""
        return Suspect(step, min(first_bad, step), self._result(-1, step), fault)

    def rolled_back(self, to_step: int, suspect: Suspect | None) -> None:
        """Begin the re-run of ``suspect`` after a rollback; None: the next steps are no re-run of the earlier ones."""
        self._journal.forget(to_step)
        self._under_way = None if suspect is None else replace(suspect, since=max(to_step, self._started_at))

    def end_without(self, step: int) -> None:
        """Compare at the last step of a re-run that has shown no fault."""
        suspect, self._under_way = self._under_way, None
        if suspect is not None:
            self._conclude(suspect, step, None)

    def meet_again(self, step: int, fault: Fault) -> None:
        """Compare as the re-run in progress meets a fault, if there is one. ``is_repeated`` states the result."""
        suspect, self._under_way = self._under_way, None
        self.is_repeated = self.is_decided = False
        if suspect is not None and step <= suspect.step:
            found = self._conclude(suspect, step, fault)
            self.is_decided = found is None and not _is_of_buffers(fault)
            self.is_repeated = self.is_decided or (found is not None and found.kind == REPEATED)

    @property
    def is_offered(self) -> bool:
        """Whether the control plane runs steps again on other GPUs after this attempt."""
        return self._order is not None and self._order.is_offered

    def _result(self, since: int, step: int) -> Result:
        losses = self._journal.between(since, step)
        state = (state_digest(self._trained) + self._checked(step)) & digests.MASK
        return Result(state, losses, settings_digest(self._trained))

    def _conclude(self, suspect: Suspect, step: int, again: Fault | None) -> Found | None:
        """Compare on all ranks and report it. Return what was found; None if the control plane is to compare.

        ``again``: the fault that the second run has shown.
        """
        second = self._result(suspect.since, step)
        both = self._ranks.gather(self._both(suspect, second, step))
        compared = [each.compared for each in both]
        found = None
        if suspect.first is not None:
            suspected = self._suspected(again or suspect.fault)
            found = judge(compared, suspected, first_bad=suspect.first_bad, is_again=again is not None)
        is_shown = found is not None or not _is_of_buffers(again)  # which a program may change on one rank alone
        if self._ranks.rank == 0 and is_shown:
            self._report(suspect, found, [each.result for each in both], end_step=step, again=again)
        if suspect.first is None and self._order is not None:
            self._order = self._order.done()
        return found

    def _both(self, suspect: Suspect, second: Result, step: int) -> _Both:
        first = suspect.first
        if first is None:
            return _Both(Compared(is_same=True, first_step=0), second.document(suspect.first_bad, suspect.step))
        first = replace(first, losses={at: loss for at, loss in first.losses.items() if at > suspect.since})
        compared = compare(first, second, suspect.first_bad, step, is_at_end=step == suspect.step)
        if self._trained.own is not None and not isinstance(suspect.fault, ReplicaError):
            # A stage or an expert of one rank gives another's loss, so losses name no rank.
            first, compared = replace(first, losses={}), replace(compared, num_before=0)
        is_repeatable = compared.is_repeatable and bool(self._is_repeatable)
        return _Both(replace(compared, is_repeatable=is_repeatable), first.document(suspect.first_bad, suspect.step))

    def _suspected(self, fault: Fault | None) -> Suspected:
        if isinstance(fault, ReplicaError):
            of_copies = fault.fault
            return Suspected(
                _fewer(of_copies.ranks, self._ranks), of_copies.group, is_of_buffers=of_copies.is_of_buffers
            )
        if fault is None or self._trained.own is not None:  # its cause may be on a rank without such a value
            return Suspected(is_of_values=True)
        return Suspected(_fewer(fault.ranks, self._ranks), is_of_values=True)

    def _report(
        self,
        suspect: Suspect,
        found: Found | None,
        results: Sequence[list[object]],
        *,
        end_step: int,
        again: Fault | None,
    ) -> None:
        elsewhere = f"on other GPUs the fault {'did not come' if again is None else 'came again'}"
        reason = f"re-run of steps {suspect.since + 1} to {end_step}: {elsewhere if found is None else found}"
        fault = again or suspect.fault
        tensor = fault.fault.tensor if isinstance(fault, ReplicaError) else ""
        ranks = () if found is None else found.ranks
        self._channel.send(
            "rerun",
            step=suspect.step,
            from_step=suspect.since,
            end_step=end_step,
            first_bad=suspect.first_bad,
            place="elsewhere" if found is None else "in_place",
            fault="replica_fault" if isinstance(fault, ReplicaError) else "value_fault",
            found="" if found is None else found.kind,
            is_again=again is not None,
            ranks=ranks[:MOST_NAMED],
            num_ranks=len(results),
            results=[[rank, *results[rank]] for rank in self._reported(ranks, len(results))],
            tensor=tensor,
            operation=operation_of(self._trained.model, tensor),
            reason=reason,
        )
        sys.stderr.write(f"muster.train: {reason}\n")

    def _reported(self, ranks: Sequence[int], num_ranks: int) -> list[int]:
        """Return the ranks whose results are sent: the ranks of the order, or the named ones and the first others."""
        if self._order is not None and self._order.ranks:
            return [rank for rank in self._order.ranks if rank < num_ranks][:MOST_RANKS]
        first = dict.fromkeys([*ranks, *range(min(num_ranks, MOST_RANKS))])
        return sorted([*first][:MOST_RANKS])


def _fewer(ranks: Sequence[int], all_ranks: Agreement) -> tuple[int, ...]:
    """Return the ranks that a fault itself names, if these are not all."""
    return tuple(ranks) if len(ranks) < all_ranks.world_size else ()


def _is_of_buffers(fault: Fault | None) -> bool:
    return isinstance(fault, ReplicaError) and fault.fault.is_of_buffers
