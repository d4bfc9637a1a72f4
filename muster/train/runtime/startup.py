"""The start of a run: the program joins the other ranks and continues where the newest checkpoint ends.

| argument of ``start`` | |
|---|---|
| ``extras`` | other objects with a state, such as a gradient scaler; if the state differs from rank to rank, each rank saves its own, and a tensor in it that is sharded over them is saved by pieces |
| ``checkpoint_every`` | a number of steps; 0: only when the job stops; ``"auto"``: as often as costs the least (``interval``), by the measured stall and how often the job's GPUs fail |
| ``asynchronous`` | training waits only until the state is copied to host memory; a background thread writes, hashes and commits the copy. If false, training waits for the commit. It always waits for the last checkpoint |
| ``keep`` | the number of generations that are retained |
| ``deterministic`` | repeatable kernels, and one thread a rank on the CPU: a resumed run equals an undisturbed one bit for bit at the same number of ranks |
| ``data_parallel`` | DDP if there are several ranks and no parameter is sharded. A model that ``fully_shard`` or ``parallelize_module`` have laid out (over a ``mesh``) stays as it is, and is saved piece by piece |
| ``data_mesh`` | the ranks that read different samples, if these are not all ranks |
| ``own`` | names of parameters that are each rank's own, such as a pipeline's stage or experts: a parameter, a module, or a pattern (``"*"``: all). Each rank saves them, with their optimizer's state, and gets its own back. Needs ``data_parallel=False``, since DDP makes parameters alike |
| ``own_mesh`` | the ranks along which they differ, if not all do: ``mesh["stage"]``. Ranks at one place of it have the same, and another number of ranks may continue at as many places |
| ``patience_s`` | how long one rank may keep the others waiting |
| ``config`` | the program's options, such as ``vars(options)``; JSON, stored with each checkpoint (``lineage``) |
| ``data`` | the result of ``dataset``, one or several; their hashes are stored with each checkpoint |
| ``outlets`` | ``tensorboard``, ``mlflow``, ``wandb``: outlets that also receive the figures (``outlets``); None: as ``MUSTER_OUTLETS`` says |
| ``tuned`` | the batch and the learning rate that were tuned together (``TunedFor``): a run gets a warning if its rate does not suit its own batch |
| ``work`` | the cost of a token, for the run's MFU |
| ``on_value_fault`` | the reaction to a value that is not finite: ``"stop"``, ``"rollback"`` or ``"skip"``, with numbers of checkpoints and rollbacks if not 1 and 3 (``on_fault``). The job's own rule comes before it |
| ``check_replicas_every`` | steps between two checks that ranks with copies of a tensor have the same bits (``replica_check``); ``"auto"``: as often as 0.5 % of the time allows; 0: never. With a number, parameters without DDP and mesh count as copies too |
| ``check_compute_every`` | steps between two checks of what no other rank has a copy of, by ``run.check_compute`` (``compute_check``); 0: never. Needs ``deterministic`` |
| ``is_timed`` | report the parts of each step's time (``pace``), which costs some 70 µs a step |
"""  # noqa: E501  # a table's row is one line

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint.cadence import require_cadence
from muster.train.checkpoint.lineage import Lineage, require_config
from muster.train.checkpoint.own_tensors import OwnRule
from muster.train.checkpoint.state import Trained
from muster.train.data.datasets import Dataset
from muster.train.data.loader_batches import count_batches
from muster.train.data.loaders import keep_loaders
from muster.train.parallel.ranks import Ranks
from muster.train.parallel.rendezvous_watch import joining
from muster.train.report.outlets import Outlets, require_outlets
from muster.train.report.pace import StepTiming
from muster.train.report.wire import Channel
from muster.train.runtime import importing, rng
from muster.train.runtime.determinism import ask_for_determinism
from muster.train.runtime.devices import Gpu, Host
from muster.train.runtime.environment import Environment
from muster.train.runtime.exit_codes import leave_before_start
from muster.train.runtime.orders import Orders
from muster.train.runtime.plans import CheckpointPlan, DataSharing, Joined, ValuePlan
from muster.train.runtime.run import Run
from muster.train.values.compute_check import require_compute_every
from muster.train.values.on_fault import ValueFaultRule
from muster.train.values.replica_check import require_every
from muster.train.watch import sensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from muster.train.checkpoint.extras import Stateful
    from muster.train.report.flops import Work
    from muster.train.report.learning_rates import TunedFor
    from muster.train.runtime.devices import Device


def start(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Stateful | None = None,
    *,
    extras: Mapping[str, Stateful] | None = None,
    checkpoint_every: int | str = 100,
    asynchronous: bool = True,
    keep: int = 3,
    seed: int = 0,
    deterministic: bool = True,
    data_parallel: bool = True,
    data_mesh: DeviceMesh | None = None,
    own: Sequence[str] | str = (),
    own_mesh: DeviceMesh | None = None,
    patience_s: float = 1800.0,
    config: Mapping[str, Any] | None = None,
    data: Dataset | Sequence[Dataset] = (),
    outlets: Sequence[str] | None = None,
    work: Work | None = None,
    tuned: TunedFor | None = None,
    on_value_fault: str = "stop",
    check_replicas_every: int | str = "auto",
    check_compute_every: int = 0,
    is_timed: bool = True,
) -> Run:
    """Join the other ranks, restore the newest checkpoint that verifies, and be ready for the next step.

    The docstring of this file describes each argument.

    Exits with 93 if a newer attempt of the job has begun.

    Raises:
        ValueError: ``own`` names no parameter, or names one that DDP would make alike.
        ValueError: ``checkpoint_every``, ``config``, ``outlets``, ``on_value_fault``, ``check_replicas_every``,
            ``check_compute_every``, or a variable of the launcher, that cannot be read.
        ValueError: ``check_compute_every`` with a model or an option that it does not work with.
        CoverageError: the newest checkpoint is of another program.
        MissingKeyError: it is encrypted under a key that is not available here.
        UnfitEnvironmentError: a rank cannot use the checkpoint store or the keys that its environment names.
        OSError: the checkpoint folder or store cannot be written, or an object store does not let its newest be read.
    """
    cadence = require_cadence(checkpoint_every)
    require_config(config)
    values = _checked_values(
        on_value_fault, check_replicas_every, check_compute_every, deterministic=deterministic, has_own=bool(own)
    )
    require_outlets(outlets or ())
    datasets = [data] if isinstance(data, Dataset) else list(data)
    _require_own_fits(model, own, data_parallel=data_parallel)
    joined, device = _joined(model, seed=seed, deterministic=deterministic, patience_s=patience_s)
    _report_of_data(joined.channel, datasets)
    _open_outlets(joined, outlets, config)
    around, is_requested = joined.around, joined.ranks.rank == 0
    lineage = Lineage(config, datasets, spec_sha256=around.spec_sha256, bundle=around.bundle, is_requested=is_requested)
    return Run(
        joined,
        Trained(model, optimizer, scheduler, extras or {}, _own_rule(model, own, own_mesh, joined.ranks)),
        CheckpointPlan(cadence, asynchronous and not around.is_synchronous, keep, lineage),
        DataSharing(seed, data_parallel, data_mesh, is_steady=deterministic and device.gpu is None),
        values=replace(values, rule=around.on_value_fault or values.rule),
        pace=partial(StepTiming, device, is_on=is_timed, work=work),
        tuned=tuned,
    )


def _checked_values(
    on_fault: str, replicas_every: int | str, compute_every: int, *, deterministic: bool, has_own: bool
) -> ValuePlan:
    """Return how the run watches its values. Raises ValueError for an argument that cannot be used."""
    rule, check_every = ValueFaultRule.of(on_fault), require_every(replicas_every)
    return ValuePlan(
        rule, check_every, require_compute_every(compute_every, deterministic=deterministic, has_own=has_own)
    )


def _require_own_fits(model: torch.nn.Module, own: Sequence[str] | str, *, data_parallel: bool) -> None:
    """Raise ValueError if DDP would make the parameters alike that are each rank's own."""
    if own and data_parallel and not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise ValueError(f"own={own!r} needs data_parallel=False, since DDP makes all parameters alike")


def _own_rule(
    model: torch.nn.Module, own: Sequence[str] | str, mesh: DeviceMesh | None, ranks: Ranks
) -> OwnRule | None:
    inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    return OwnRule.of(own, mesh, inner, ranks)


def _open_outlets(joined: Joined, requested: Sequence[str] | None, config: Mapping[str, Any] | None) -> None:
    """Open the outlets in the first rank, for all ranks. Raises ValueError if the launcher names an unknown one."""
    channel = joined.channel
    names = require_outlets(joined.around.outlets if requested is None else requested)
    if names and joined.ranks.rank == 0:
        channel.lead_to(
            Outlets(names, joined.around, config, lambda code, words: channel.send("warning", code=code, message=words))
        )


def _report_of_data(channel: Channel, datasets: Sequence[Dataset]) -> None:
    """Report each dataset that could not be copied to this host: reading it in place costs time at each step."""
    for each in datasets:
        if each.why_in_place:
            words = f"{each.source} is read in place: {each.why_in_place}"
            channel.send("warning", code="data_not_staged", message=words)


def _joined(model: torch.nn.Module, *, seed: int, deterministic: bool, patience_s: float) -> tuple[Joined, Device]:
    """Connect to the supervisor and then to the other ranks; return both, and the device that the model computes on."""
    around = Environment.of()
    channel = Channel(around.socket_path)
    channel.send("hello", rank=around.rank, world_size=around.world_size, pid=os.getpid())
    orders = Orders(channel, around.stop_notice_s)
    orders.watch_signals()
    importing.end()
    sensor.start(around)
    keep_loaders()
    count_batches()
    gpu = next((parameter.device for parameter in model.parameters() if parameter.is_cuda), None)
    has_gpu = gpu is not None
    if deterministic:
        ask_for_determinism(has_gpu=has_gpu)
    leave = partial(leave_before_start, channel)
    with joining(orders, leave) if around.world_size > 1 else contextlib.nullcontext():
        ranks = Ranks(
            around.rank, around.world_size, is_launched=around.is_launched, has_gpu=has_gpu, patience_s=patience_s
        )
    rng.seed_rank(seed, ranks.rank)
    return Joined(around, ranks, channel, orders), Host() if gpu is None else Gpu(gpu)
