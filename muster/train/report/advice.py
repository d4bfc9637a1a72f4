"""Warnings about likely mistakes of a program, found once at its start. They change nothing and stop nothing.

| code | found |
|---|---|
| ``batch_norm`` | BatchNorm under data parallelism: each rank has statistics of its own few samples |
| ``learning_rate`` | the rate of another batch: scaled by no rule from ``TunedFor``, or unchanged over a resume |
| ``random_numbers`` | resumed on more ranks than saved: the new ranks have random numbers of their own |
| ``same_samples`` | ranks that should read different samples began with the very same ones: one seed on all of them |
| ``tensor_across_nodes`` | ranks that share one sample's work are on several hosts: each layer waits for the network |
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from muster.train.checkpoint.staging import is_plain
from muster.train.report.learning_rates import Rates, batch_of, ranks_text, resume_text, tuning_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from muster.train.parallel.ranks import Agreement
    from muster.train.report.learning_rates import TunedFor
    from muster.train.report.wire import Channel

_MOST_HASHED = 1 << 14
_MOST_NAMED = 3
_HOST_RANK_VARIABLES = ("MUSTER_NODE_RANK", "GROUP_RANK", "NODE_RANK")
"""Variables of Muster's supervisor, torchrun, and other launchers; the first that is set is used."""


class Adviser:
    """Adviser of one rank; all ranks are compared together. ``place``: its group's number and the number of groups.

    A group is the ranks that read the same samples.
    """

    def __init__(
        self, ranks: Agreement, channel: Channel, place: tuple[int, int], *, tuned: TunedFor | None = None
    ) -> None:
        self._ranks = ranks
        self._channel = channel
        self._number, self._num_readers = place
        self._tuned = tuned
        self._rates: Rates | None = None
        self._ranks_before = 0
        self._batch_before = 0.0
        self._first = FirstBatch()
        self._hook: Any = None

    def begin(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        ranks_before: int,
        batch_before: float = 0.0,
    ) -> None:
        """Check the model before the first step, and watch the first batch.

        ``ranks_before``: ranks of the checkpoint that is resumed from; 0 if there is none. ``batch_before``: samples of
        a step until then, of all ranks; 0 if they were not counted.
        """
        self._ranks_before, self._batch_before = ranks_before, batch_before
        if self._tuned is not None or ranks_before not in (0, self._ranks.world_size):
            self._rates = Rates(optimizer, is_fresh=ranks_before == 0)
        if self._ranks.world_size == 1 and ranks_before <= 1:
            return
        self._report("batch_norm", _of_batch_norm(model) if self._num_readers > 1 else "")
        self._report("random_numbers", _of_random_numbers(ranks_before, self._ranks.world_size))
        places = self._ranks.gather((self._number, _own_host()))
        self._report("tensor_across_nodes", _of_nodes(places))
        if self._num_readers > 1:
            self._hook = model.register_forward_pre_hook(self._first.note, with_kwargs=True)

    def after_first_step(self, num_samples: int | None = None) -> None:
        """Compare the ranks after the first step. All ranks call it after each step; later calls have no effect.

        ``num_samples``: this rank's samples of that step; None if they are not counted.
        """
        rates, self._rates = self._rates, None
        if rates is not None:
            batch = batch_of(self._ranks.gather((self._number, num_samples)))
            self._report("learning_rate", self._of_learning_rate(batch, rates))
        if self._hook is None:
            return
        self.leave()
        self._report("same_samples", _of_samples(self._ranks.gather((self._number, self._first.digest))))

    def _of_learning_rate(self, batch: int | None, rates: Rates) -> str:
        """Return the warning about the learning rate: by ``TunedFor`` if it is given, else by the run before the
        resume.
        """
        if self._tuned is not None and rates.highest is not None:
            return tuning_text(self._tuned, batch, rates)
        before, now = self._ranks_before, self._ranks.world_size
        if before in (0, now):
            return ""
        if batch is not None and self._batch_before > 0:
            return resume_text(self._batch_before, batch, rates)
        return ranks_text(before, now, rates) if self._num_readers == now else ""

    def leave(self) -> None:
        """Remove the hook."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _report(self, code: str, words: str) -> None:
        """Report a warning from the first rank, for all ranks."""
        if words and self._ranks.rank == 0:
            sys.stderr.write(f"muster.train: {words}\n")
            self._channel.send("warning", code=code, message=words)


class FirstBatch:
    """Digest of the first inputs with which the model is called to train; empty if they cannot be hashed."""

    def __init__(self) -> None:
        self.digest = ""

    def note(self, module: torch.nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
        if torch.compiler.is_compiling() or self.digest or not (module.training and torch.is_grad_enabled()):
            return
        tensors = [each for each in (*inputs, *named.values()) if isinstance(each, torch.Tensor)]
        with contextlib.suppress(RuntimeError):  # under torch.func tensors have no values of their own to compare
            if tensors and all(map(is_plain, tensors)):
                content = [each.detach().flatten()[:_MOST_HASHED].cpu().tolist() for each in tensors]
                self.digest = hashlib.sha256(repr(content).encode()).hexdigest()


def _of_batch_norm(model: torch.nn.Module) -> str:
    found = [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and not isinstance(module, torch.nn.SyncBatchNorm)
        and module.track_running_stats
    ]
    if not found:
        return ""
    named = ", ".join(found[:_MOST_NAMED]) + (f" and {len(found) - _MOST_NAMED} more" if found[_MOST_NAMED:] else "")
    return (
        f"BatchNorm ({named}) has statistics of each rank's own samples: on GPUs call "
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before the start, to share them among all ranks"
    )


def _of_random_numbers(before: int, now: int) -> str:
    if not 0 < before < now:
        return ""
    ranks = f"rank {before} has" if before + 1 == now else f"ranks {before} to {now - 1} have"
    return f"resumed on {now} ranks from a checkpoint of {before}: {ranks} no random numbers there, new ones are drawn"


def _own_host() -> str:
    """Return this host's number among the job's hosts; "0" if no variable gives it, as for ranks on one host."""
    return next((told for name in _HOST_RANK_VARIABLES if (told := os.environ.get(name))), "0")


def _of_nodes(places: Sequence[tuple[int, str]]) -> str:
    hosts: dict[int, set[str]] = {}
    for number, host in places:
        hosts.setdefault(number, set()).add(host)
    if not any(len(found) > 1 for found in hosts.values()):
        return ""
    return (
        "ranks that share the work on one sample are on several hosts: under tensor parallelism each layer waits for "
        "the network; let the mesh's last dimension divide the ranks of a host"
    )


def _of_samples(begun: Iterable[tuple[int, str]]) -> str:
    digests: dict[int, str] = dict(begun)
    if not all(digests.values()) or len(set(digests.values())) == len(digests):
        return ""
    alike = len(digests) - len(set(digests.values())) + 1
    return (
        f"{alike} of {len(digests)} ranks began with the very same samples: is each rank's shuffling seeded alike? "
        "run.sample_indices gives each its own"
    )
