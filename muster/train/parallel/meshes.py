"""Ranks in a mesh of several dimensions, and operations over all of them at once."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from muster.train.parallel.shards import is_sharded, local_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.distributed.device_mesh import DeviceMesh


class _Joined:
    """Record that this package joined the default group, and so also leaves it."""

    by_us = False


def join(*, has_gpu: bool) -> None:
    """Join the default group if the program has not: NCCL for tensors on GPUs, gloo for tensors on the CPU."""
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
        _Joined.by_us = True


def leave() -> None:
    """Leave the default group if this package joined it."""
    if _Joined.by_us:
        _Joined.by_us = False
        dist.destroy_process_group()


def mesh(**sizes: int) -> DeviceMesh:
    """Return all ranks of the job, the outermost dimension first: ``mesh(data=4, tensor=2)``; one may be -1, the rest.

    Neighbours in the last dimension are neighbours in rank: put the dimension with the most traffic there, to keep it
    on one host.

    Raises:
        ValueError: the sizes do not make up the number of ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415  # only who shards needs it

    has_gpu = torch.cuda.is_available()
    join(has_gpu=has_gpu)
    shape = _shape(list(sizes.values()), dist.get_world_size())
    return init_device_mesh("cuda" if has_gpu else "cpu", shape, mesh_dim_names=tuple(sizes))


def _shape(sizes: Sequence[int], num_ranks: int) -> tuple[int, ...]:
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) > 1 or known < 1 or num_ranks % known or (-1 not in sizes and known != num_ranks):
        raise ValueError(f"{' × '.join(map(str, sizes)) or 'nothing'} does not make up {num_ranks} ranks")
    return tuple(num_ranks // known if size == -1 else size for size in sizes)


def place_in(found: DeviceMesh) -> tuple[int, int]:
    """Return (this rank's number, how many there are) in a mesh of any dimensions, the last counting fastest."""
    place, number = found.get_coordinate(), 0
    for at, size in zip(place or (), found.shape, strict=True):
        number = number * size + at
    return number, found.size()


def ranks_in(found: DeviceMesh) -> tuple[int, ...]:
    """Return the ranks of a mesh, the last dimension counting fastest."""
    return tuple(int(rank) for rank in found.mesh.flatten().tolist())


def work_place(data: DeviceMesh | None, own: int | None, model: torch.nn.Module) -> str:
    """Return a name that ranks with the same work have in common, such as the ranks of one pipeline stage.

    ``data``: the ranks that read different samples and do the same. ``own``: the place of this rank among those with
    different parameters. Without both, ranks with parameters of the same names and shapes have the same work.
    """
    led_by = "" if data is None else f"data ranks of {int(data.mesh.min())}"
    if own is not None:
        return f"{led_by} at {own}".strip()
    return led_by or f"model {_shapes_of(model):08x}"


def _shapes_of(model: torch.nn.Module) -> int:
    """Return a checksum of the names and whole shapes of the parameters: stages and roles of a program differ in it."""
    words = ";".join(f"{name}:{tuple(parameter.shape)}" for name, parameter in model.named_parameters())
    return zlib.crc32(words.encode())


def clip_grad_norm(parameters: Iterable[torch.nn.Parameter], max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scale all gradients so that their norm over all ranks is at most ``max_norm``. Returns the norm before.

    It does what ``torch.nn.utils.clip_grad_norm_`` does, which fails if parameters are on several meshes: here each
    mesh has its norm, and the norms are combined.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    norms = [_norm(of_one_mesh, norm_type) for of_one_mesh in _by_mesh(gradients)]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]), norm_type)
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for gradient in gradients:
        local = local_of(gradient)
        local.mul_(scale.to(local.device))
    return total


def _norm(gradients: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    norm: Any = torch.nn.utils.get_total_norm(gradients, norm_type)
    whole: torch.Tensor = norm.full_tensor() if is_sharded(norm) else norm
    return whole


def _by_mesh(gradients: Iterable[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    found: dict[Any, list[torch.Tensor]] = {}
    for gradient in gradients:
        found.setdefault(getattr(gradient, "device_mesh", None), []).append(gradient)
    return found.values()
