"""Check of compute without copies: each rank computes a micro-batch of its own and one of another rank.

Under ``fully_shard`` each rank has parts that no other has, and under DDP the average hides whose gradient was false.
So every few steps all ranks pass their micro-batches on along the circle of ranks that read different samples, and
compute what they got: with the whole parameters that each forward pass gathers anyway, the owner's buffers, and the
same random numbers. Loss and gradients must be alike, bit for bit (``local_passes``)::

    rank           0       1       2
    own            b0      b1      b2
    passed on      b2      b0      b1        a rank that computes wrong is in two pairs: it is named

If they are not, a second shift gives each micro-batch a third result (``compute_judge``). The training keeps its
random numbers, gradients and buffers, so it is bit for bit as without the check.

A first comparison that fails proves nothing, since the program's function may depend on its rank. It is reported, and
ends the check.
"""

from __future__ import annotations

import dataclasses
import math
import platform
import sys
from typing import TYPE_CHECKING, Any

import torch

from muster.train.report.wire import MOST_NAMED
from muster.train.reruns.repeatable import Repeatable
from muster.train.values import local_passes
from muster.train.values.compute_judge import judge
from muster.train.values.local_passes import LOSS, Table, packed, passed, set_aside
from muster.train.values.replica_check import ReplicaError
from muster.train.values.replica_judge import ReplicaFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.train.parallel.ranks import Agreement
    from muster.train.report.wire import Channel
    from muster.train.values.compute_judge import Computed, Unlike
    from muster.train.values.local_passes import LossOf


@dataclasses.dataclass(frozen=True)
class ComputePlan:
    """``every``: steps from check to check, 0 for never. ``circle``: the ranks that read different samples, in order.

    ``is_expected``: a fault was found before in these steps, so that also the first comparison may show one.
    """

    every: int
    circle: Sequence[int]
    is_expected: bool = False


NEVER = ComputePlan(0, ())


def require_compute_every(every: object, *, deterministic: bool, has_own: bool) -> int:
    """Return the steps from check to check. Raises ValueError for a number, or for a run that cannot be checked."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 0:
        raise ValueError(f"check_compute_every={every!r}: must be a number of steps, or 0 for never")
    if every and not deterministic:
        raise ValueError("check_compute_every needs deterministic=True: other kernels give other bits each time")
    if every and has_own:
        raise ValueError("check_compute_every: a rank with parameters of its own (own) cannot compute for another")
    return every


class ComputeCheck:
    """Check of one rank. All ranks call ``check`` in the same steps, ``require`` at each step's end."""

    def __init__(self, model: torch.nn.Module, ranks: Agreement, channel: Channel, plan: ComputePlan) -> None:
        """Prepare. Raises ValueError for a model that cannot be checked."""
        self._model = model
        self._ranks = ranks
        self._channel = channel
        self._plan = plan
        self._agreed_step = -1
        self._has_agreed = plan.is_expected
        self._is_on = bool(plan.every) and len(plan.circle) > 1
        self._is_repeatable = Repeatable() if self._is_on else True
        self._newest = (-1, 0)
        self._pending: ReplicaFault | None = None
        if plan.every:
            local_passes.require_fit(model)

    @property
    def trusted_step(self) -> float:
        """The step of the last check that agreed, so that a checkpoint of it is kept until the next one; infinite if
        there was none, since a first check that fails leads to no rollback.
        """
        return self._agreed_step if self._is_on and self._agreed_step >= 0 else math.inf

    def is_due(self, step: int) -> bool:
        """Return whether the step that ends as ``step`` is compared."""
        return self._is_on and step % self._plan.every == 0

    def check(self, step: int, loss_of: LossOf, batch: object) -> None:
        """Compute a micro-batch of the step that ends as ``step`` on two ranks, and compare; on all ranks together.

        Raises:
            ValueError: ``loss_of`` returns no loss, or gradients are being accumulated.
        """
        with set_aside(self._model):
            passes = _Passes(self._model, self._ranks, self._plan.circle, packed(self._model, batch), loss_of, step)
            passes.compute(0)
            shift = 1 + step // self._plan.every % (len(self._plan.circle) - 1)
            passes.compute(shift)
            self._newest = (step, sum(passes.digests()))
            kind = _kind(self._model) if self._is_repeatable else ""
            told = self._ranks.gather((kind, passes.computed()))
            if not all(kind for kind, _ in told) or len({kind for kind, _ in told}) > 1:
                self._stop(step, "the ranks compute on different hardware, or by operations without a repeatable form")
                return
            unlike = judge(each for _, computed in told for each in computed)
            if unlike is not None and len(self._plan.circle) > 2:  # there is a third rank to ask
                passes.compute(1 + shift % (len(self._plan.circle) - 1))
                unlike = judge(each for told in self._ranks.gather(passes.computed()) for each in told)
        if unlike is None:
            self._agreed_step, self._has_agreed = step, True
        else:
            self._note(self._fault(step, unlike, passes))

    def require(self) -> None:
        """Raise ReplicaError, on every rank, if this step's results differ."""
        fault, self._pending = self._pending, None
        if fault is not None:
            raise ReplicaError(fault)

    def digest_at(self, step: int) -> int:
        """Return one number for what this rank computed in the check of a step; 0 if there was none."""
        return self._newest[1] if self._newest[0] == step else 0

    def rolled_back(self, step: int) -> None:
        """Forget the checks after ``step``, whose state is restored."""
        self._pending = None
        self._agreed_step = min(self._agreed_step, step)

    def _note(self, fault: ReplicaFault) -> None:
        if self._has_agreed:
            self._pending = fault
            return
        ranks = dataclasses.replace(fault, ranks=())  # the program's function may depend on its rank
        self._stop(fault.step, f"{fault}: its GPU is faulty, or the function depends on its rank", ranks)

    def _stop(self, step: int, why: str, fault: ReplicaFault | None = None) -> None:
        """Compare no more, and report why."""
        self._is_on = False
        words = f"compute is not compared from step {step} on: {why}"
        if self._ranks.rank != 0:
            return
        self._channel.send("warning", code="compute_not_compared", message=words)
        if fault is not None:
            self._channel.send("replica_fault", **report_of(fault), reason=words)
        sys.stderr.write(f"muster.train: {words}\n")

    def _fault(self, step: int, unlike: Unlike, passes: _Passes) -> ReplicaFault:
        tables = [table for table in self._ranks.gather(passes.tables.get(unlike.owner)) if table is not None]
        names = dict.fromkeys(name for table in tables for name in table)
        differing = [name for name in names if len({table.get(name) for table in tables}) > 1] or [LOSS]
        first = differing[0] if differing[0] == LOSS else f"the gradient of {differing[0]}"
        return ReplicaFault(
            unlike.ranks, unlike.group, first, len(differing), step, self._agreed_step, is_of_compute=True
        )


def report_of(fault: ReplicaFault) -> dict[str, Any]:
    """Return the fields of the message ``replica_fault``, without its reason."""
    return {
        "step": fault.step,
        "since": max(fault.since, 0),
        "verdict": fault.kind,
        "ranks": fault.ranks[:MOST_NAMED],
        "tensor": fault.tensor,
        "num_tensors": fault.num_tensors,
        "num_copies": len(fault.group),
        "is_of_buffers": fault.is_of_buffers,
        "is_of_compute": fault.is_of_compute,
    }


class _Passes:
    """What one rank computes in one check. ``tables``: digests by the owner of the micro-batch."""

    def __init__(
        self,
        model: torch.nn.Module,
        ranks: Agreement,
        circle: Sequence[int],
        content: torch.Tensor,
        loss_of: LossOf,
        step: int,
    ) -> None:
        self.tables: dict[int, Table] = {}
        self._model, self._ranks, self._circle = model, ranks, circle
        self._content, self._loss_of, self._step = content, loss_of, step

    def compute(self, shift: int) -> None:
        """Compute the micro-batch of the rank ``shift`` places before this one; 0: its own."""
        place = self._circle.index(self._ranks.rank)
        owner, to = self._circle[place - shift], self._circle[(place + shift) % len(self._circle)]
        content = self._ranks.pass_on(self._content, to, owner) if shift else self._content
        self.tables[owner] = passed(self._model, self._loss_of, content, self._step)

    def digests(self) -> list[int]:
        return [local_passes.digest_of(table) for table in self.tables.values()]

    def computed(self) -> list[Computed]:
        return [(owner, self._ranks.rank, digest) for owner, digest in zip(self.tables, self.digests(), strict=True)]


def _kind(model: torch.nn.Module) -> str:
    """Return what decides the bits of a result: ranks with different ones are not compared."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if device.type == "cuda":
        return f"{torch.__version__} {torch.cuda.get_device_name(device)}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{torch.__version__} {platform.machine()} {capability} {torch.get_num_threads()}"
