"""Watch of one rank's values: what it sends with each step's exchange, and what all ranks conclude from it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from muster.train.runtime.divergence import DivergedError, Divergence
from muster.train.values.compute_check import NEVER, ComputeCheck
from muster.train.values.copies import Copies
from muster.train.values.first_module import FirstModule
from muster.train.values.replica_check import ReplicaCheck, ReplicaError
from muster.train.values.skipped_steps import SkippedSteps
from muster.train.values.spikes import PERSISTENT, Spikes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from muster.train.checkpoint.state import Trained
    from muster.train.parallel.ranks import Agreement
    from muster.train.report.wire import Channel
    from muster.train.values.compute_check import ComputePlan
    from muster.train.values.spikes import Spike

_NUM_OF_DIVERGENCE = 3
_NUM_OF_SPIKES = 2


class ValueWatch:
    """Values of one rank. ``begin`` begins a step; ``figures`` and ``agree`` end it.

    ``unusual_step``: the newest step with a spike; -1: there was none. ``compute``: the check of what has no copy.
    """

    def __init__(
        self,
        trained: Trained,
        wrapped: torch.nn.Module,
        ranks: Agreement,
        channel: Channel,
        *,
        every: int | None,
        ends_persistent: bool,
        compute: ComputePlan = NEVER,
    ) -> None:
        """Watch from now on.

        ``every``: steps between two checks of replicas; None: as many as the cost allows. ``ends_persistent``: spikes
        without an end are a fault. Raises ValueError for a model whose compute cannot be checked as ``compute`` states.
        """
        self._ranks = ranks
        self._channel = channel
        self._ends_persistent = ends_persistent
        self._divergence = Divergence(trained.optimizer)
        self._spikes = Spikes()
        self._shifted_at: int | None = None
        self._skipped = SkippedSteps(trained.extras.values())
        self._module = FirstModule(trained.model, trained.optimizer)
        copies = Copies(trained, wrapped, ranks.world_size, is_declared=bool(every))
        self._replicas = ReplicaCheck(copies, ranks, every)
        self.compute = ComputeCheck(trained.model, ranks, channel, compute)

    @property
    def unusual_step(self) -> int:
        return self._spikes.last_step

    @property
    def loss(self) -> float | None:
        """The loss of this step that this rank reported; None if it reported none."""
        return self._divergence.loss

    def start(self, step: int) -> None:
        """Compare the replicas as training begins; on all ranks."""
        self._replicas.begin(step)

    def begin(self, step: int) -> None:
        self._divergence.begin()
        self._module.begin(step)

    def note_loss(self, loss: float) -> None:
        """Record a loss of this step."""
        self._divergence.note_loss(loss)

    def note_grad_norm(self, norm: float | torch.Tensor) -> None:
        """Record the gradient norm of this step."""
        self._divergence.note_grad_norm(norm)
        if (
            not getattr(norm, "is_cuda", False)
            and not hasattr(norm, "placements")
            and not abs(float(norm)) < float("inf")
        ):
            self._module.examine()

    def end(self, step_s: float) -> None:
        """End a step, before ``figures``."""
        self._skipped.end_step()
        self._replicas.note_step(step_s)

    def pace_word(self) -> dict[str, int]:
        """Return what a report of the pace says of values."""
        return self._skipped.word()

    def figures(self, step: int) -> list[int]:
        """Return figures of which all ranks take the highest."""
        of_divergence = self._divergence.figures()
        of_spikes = Spikes.figures(self._divergence.loss, self._divergence.norm)
        return [*of_divergence, *of_spikes, *self._replicas.figures(step)]

    def agree(self, step: int, highest: Sequence[int]) -> None:
        """Judge a step. Raises DivergedError or ReplicaError, on every rank."""
        of_divergence, rest = highest[:_NUM_OF_DIVERGENCE], highest[_NUM_OF_DIVERGENCE:]
        if self._divergence.is_bad(of_divergence):
            self._module.examine_after()
            origin = self._module.words
            self._divergence.require_none(step, of_divergence, self._ranks, origin=origin)
        for spike in self._spikes.agree(step, list(rest[:_NUM_OF_SPIKES])):
            self._note_spike(spike)
        self._replicas.agree(rest[_NUM_OF_SPIKES:])
        self.compute.require()

    def before_save(self, step: int) -> None:
        """Compare the replicas before a save. Raises ReplicaError, on every rank."""
        self._replicas.before_save(step)

    def _note_spike(self, spike: Spike) -> None:
        is_persistent = spike.length >= PERSISTENT
        more = f"; {spike.length} values in a row are as high" if is_persistent else ""
        if self._ranks.rank == 0:
            is_shown = spike.length == 1 or is_persistent
            self._channel.send(
                "spike",
                step=spike.step,
                what=spike.what,
                value=spike.value,
                usual=spike.usual,
                length=spike.length,
                is_shown=is_shown,
            )
            if is_shown:
                sys.stderr.write(f"muster.train: spike: {spike}{more}\n")
        onset = spike.onset
        is_again = self._shifted_at is not None and abs(onset - self._shifted_at) < PERSISTENT
        if is_persistent and self._ends_persistent and not is_again:  # after one rollback the new level is accepted
            self._shifted_at = onset
            raise DivergedError(f"diverged at step {onset}: {spike}{more}", step=onset)

    def first_bad_step(self, fault: DivergedError | ReplicaError) -> int:
        """Return the first step whose state is not to be trusted: of the spikes that led to the fault, if there are
        some.
        """
        if isinstance(fault, ReplicaError):
            return max(fault.fault.since, 0) + 1
        onset = self._spikes.onset
        return fault.step if onset is None else min(onset, fault.step)

    def rolled_back(self, step: int, fault: DivergedError | ReplicaError) -> None:
        """Forget the steps after ``step``, whose state is restored; name the module if a value is bad again."""
        self._divergence.forget()
        self._spikes.forget(step)
        self.compute.rolled_back(step)
        if isinstance(fault, ReplicaError):
            self._replicas.rolled_back(step, fault.fault)
        else:
            self._replicas.rolled_back(step, None)
            self._module.arm(fault.step)
