"""Tensors of which several ranks hold copies, with the ranks that hold them.

| tensor | ranks with a copy |
|---|---|
| parameter under DDP, and its state in the optimizer | the ranks of DDP's group |
| parameter or state on a mesh (FSDP2, HSDP, tensor parallelism) | the ranks with the same piece: those along each dimension of the mesh on which it is replicated |
| buffer without a mesh | all ranks; ranks may legally differ (``replica_judge``) |
| running statistics of a batch norm that no ranks share | none: each rank's are of its own samples |
| parameter without DDP and mesh | all ranks, if the program asks for the check itself: nothing else declares copies |

Tensors that the program declares as each rank's own are no copies.
"""  # noqa: E501  # a table's row is one line

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from muster.train.checkpoint.staging import is_plain
from muster.train.parallel.shards import is_sharded, local_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from muster.train.checkpoint.state import Trained

Group = tuple[int, ...]
"""The ranks that hold copies of one tensor, in order."""
NO_COPIES: Group = ()
_LOCAL_SGD = "PostLocalSGDState"
"""State of torch's communication hook whose ranks average their parameters at some steps alone."""


class Copy(NamedTuple):
    """This rank's copy of a tensor. ``is_sure``: DDP keeps it alike, so that the first difference is a fault.
    ``is_own``: the program trains without DDP's averages between some steps, so a difference is no fault.

    ``is_buffer``: a buffer, or a frozen parameter, which a program may change on one rank alone, such as an average of
    weights or the best loss so far.
    """

    name: str
    group: Group
    values: torch.Tensor
    is_sure: bool = False
    is_buffer: bool = False
    is_own: bool = False


class Copies:
    """Copies of one rank, found again at each check: an optimizer makes its state at its first step."""

    def __init__(self, trained: Trained, wrapped: torch.nn.Module, world_size: int, *, is_declared: bool) -> None:
        """Find copies. ``wrapped``: the model as the program calls it. ``is_declared``: the program asks for checks."""
        self._trained = trained
        self._all = tuple(range(world_size))
        self._plain, self._ignored = NO_COPIES, frozenset[str]()
        self._ddp: Any = None
        self._is_local = self._has_hooks = False
        if isinstance(wrapped, torch.nn.parallel.DistributedDataParallel):
            self._ddp = wrapped
            self._plain = tuple(dist.get_process_group_ranks(wrapped.process_group))
            self._ignored = frozenset(wrapped.parameters_to_ignore)
        elif is_declared:
            self._plain = self._all
        self._by_layout: dict[tuple[int, tuple[object, ...]], Group] = {}
        if self._ddp is not None and trained.optimizer is not None:
            trained.optimizer.register_step_pre_hook(self._note_local)

    def _note_local(self, *_: object) -> None:
        """Note an optimizer's step on gradients that DDP has not averaged, as of local SGD."""
        self._is_local |= not self._ddp.require_forward_param_sync

    def groups(self) -> set[Group]:
        """Return the groups of this rank, also of the optimizer's state that is to come."""
        found = {self._group_of(name, parameter) for name, parameter in self._trained.model.named_parameters()}
        found.add(self._all)  # of buffers
        return {group for group in found if len(group) > 1}

    def __iter__(self) -> Iterator[Copy]:
        hooks = [] if self._ddp is None else self._ddp._comm_hooks  # noqa: SLF001  # no public place has them
        self._is_local |= any(type(held).__name__ == _LOCAL_SGD for _, held in hooks)
        self._has_hooks = bool(hooks)
        named: dict[int, tuple[str, Group]] = {}
        for name, parameter in self._trained.model.named_parameters():
            group = self._group_of(name, parameter)
            named[id(parameter)] = name, group
            yield from self._copy(name, parameter, group, is_buffer=not parameter.requires_grad)
        buffers = list(self._trained.model.named_buffers())
        statistics = _own_statistics(self._trained.model) if buffers else ()
        for name, buffer in buffers:
            if name not in self._ignored and name not in statistics and not is_sharded(buffer):
                yield from self._copy(name, buffer, self._all if self._ddp is None else self._plain, is_buffer=True)
        yield from self._of_optimizer(named)

    def _of_optimizer(self, named: Mapping[int, tuple[str, Group]]) -> Iterator[Copy]:
        """Yield what the optimizer holds of the model's parameters. ``named``: these by identity."""
        optimizer = self._trained.optimizer
        if optimizer is None:
            return
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        for parameter in parameters:
            values = optimizer.state.get(parameter)
            if id(parameter) not in named or not isinstance(values, dict):
                continue
            name, alike = named[id(parameter)]
            is_frozen = not parameter.requires_grad
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    group = self._on_mesh(value) if is_sharded(value) else alike
                    yield from self._copy(f"the optimizer's {key} of {name}", value, group, is_buffer=is_frozen)

    def _copy(self, name: str, value: torch.Tensor, group: Group, *, is_buffer: bool) -> tuple[Copy] | tuple[()]:
        """Return the copy, if it is one."""
        if len(group) < 2:
            return ()
        has_mesh = is_sharded(value)
        values = local_of(value) if has_mesh else value
        if not is_plain(values) or values.is_meta:
            return ()
        is_of_ddp = self._ddp is not None and not is_buffer and not has_mesh
        is_sure = is_of_ddp and not self._has_hooks
        return (Copy(name, group, values, is_sure=is_sure, is_buffer=is_buffer, is_own=is_of_ddp and self._is_local),)

    def _group_of(self, name: str, parameter: torch.Tensor) -> Group:
        if name in self._ignored:
            return NO_COPIES
        if is_sharded(parameter):
            return self._on_mesh(parameter)
        own = self._trained.own
        return NO_COPIES if own is not None and own.holds(name) else self._plain

    def _on_mesh(self, value: Any) -> Group:
        """Return the ranks that hold the same piece as this one."""
        placements = tuple(value.placements)
        key = (id(value.device_mesh), placements)
        if key not in self._by_layout:
            self._by_layout[key] = _same_piece(value.device_mesh, placements)
        return self._by_layout[key]


def _own_statistics(model: torch.nn.Module) -> frozenset[str]:
    """Return the names of the buffers that a batch norm computes from the rank's own samples.

    Ranks with similar samples have equal ones for some steps: that they differ later is no fault.
    """
    return frozenset(
        f"{prefix}.{name}".removeprefix(".")
        for prefix, module in model.named_modules()
        if isinstance(module, _BatchNorm) and not isinstance(module, torch.nn.SyncBatchNorm)
        for name, _ in module.named_buffers(recurse=False)
    )


def _same_piece(mesh: Any, placements: tuple[Any, ...]) -> Group:
    place = mesh.get_coordinate()
    if place is None or any(each.is_partial() for each in placements):
        return NO_COPIES
    index = tuple(slice(None) if each.is_replicate() else at for at, each in zip(place, placements, strict=True))
    return tuple(sorted(int(rank) for rank in mesh.mesh[index].reshape(-1).tolist()))
