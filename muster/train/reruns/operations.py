"""The operation whose result a suspect tensor is: a burn-in of a GPU repeats it with the same shape, kind and size.

It is stated for the module that holds the tensor: a product of matrices for a linear layer, a convolution for one of
two dimensions. Others have none, and the usual burn-in follows.
"""

from __future__ import annotations

from typing import Any

import torch

from muster.train.parallel.shards import is_sharded

MOST_SIZE = 1 << 16
_MOST_MAGNITUDE = 1e30
_VALUES_AT_ONCE = 1 << 20
_OF_OPTIMIZER = " of "


def operation_of(model: torch.nn.Module, tensor: str) -> dict[str, Any] | None:
    """Return the operation of the module that holds ``tensor``; None if it is none of the known ones.

    One rank calls it while others wait in a recovery. So no fault of it counts, such as one of the program's own
    attributes, or too little memory.
    """
    name = tensor.rpartition(_OF_OPTIMIZER)[2].rpartition(".")[0]
    try:
        return _operation_of(model.get_submodule(name)) if tensor else None
    except Exception:  # noqa: BLE001  # the burn-in then repeats no operation
        return None


def _operation_of(module: torch.nn.Module) -> dict[str, Any] | None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or is_sharded(weight) or weight.numel() == 0:
        return None
    if isinstance(module, torch.nn.Linear):
        kind = "matmul"
    elif isinstance(module, torch.nn.Conv2d) and module.groups == 1:
        kind = "conv2d"
    else:
        return None
    shape = list(weight.shape)
    if max(shape) > MOST_SIZE:
        return None
    return {
        "kind": kind,
        "shape": shape,
        "dtype": str(weight.dtype).removeprefix("torch."),
        "magnitude": min(_magnitude(weight), _MOST_MAGNITUDE),
    }


@torch.no_grad()
def _magnitude(weight: torch.Tensor) -> float:
    """Return the mean size of a value, a few values at once: on a full GPU there is no room for a copy."""
    rows = max(1, _VALUES_AT_ONCE * len(weight) // weight.numel())
    parts = [part.float().abs().nan_to_num(0.0, 0.0, 0.0).sum() for part in torch.split(weight, rows)]
    return float(sum(float(part) for part in parts)) / weight.numel()
