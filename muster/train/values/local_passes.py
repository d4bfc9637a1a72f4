"""One forward and backward pass of a micro-batch, as digests of its loss and of this rank's own gradients.

Gradients are read as they reach each parameter, before ranks average them. Under ``fully_shard`` that is the whole
parameter, which a module has only from its forward pass on; so the hooks are set there. A digest is all that is kept:
gradients need as much memory as in a step of the training.
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any, cast

import torch

from muster.train.parallel.shards import local_of
from muster.train.runtime import rng
from muster.train.values import digests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    LossOf = Callable[[torch.nn.Module, Any], Any]

LOSS = "loss"
_FSDP1 = "FullyShardedDataParallel"
Table = dict[str, int]
"""Digests of the loss and of the gradients by parameter."""


def require_fit(model: torch.nn.Module) -> None:
    """Require that a pass within the training leaves it as it is. Raises ValueError."""
    if any(type(module).__name__ == _FSDP1 for module in model.modules()):
        raise ValueError("check_compute_every: FullyShardedDataParallel hides its gradients; use fully_shard instead")
    if any(getattr(each, "_post_accumulate_grad_hooks", None) for each in model.parameters()):
        raise ValueError("check_compute_every: a hook of a parameter acts on its gradient within the backward pass")


@contextlib.contextmanager
def set_aside(model: torch.nn.Module) -> Iterator[None]:
    """Keep random numbers, gradients and buffers of the training as they are, whatever is computed meanwhile.

    Raises ValueError between two parts of an accumulation under ``fully_shard``, whose sums are in no ``grad``.
    """
    if not all(map(_is_between_steps, model.modules())):
        raise ValueError(
            "check_compute: call it before the first backward pass of a step, while gradients are averaged"
        )
    numbers = rng.rng_state()
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(*each, each[-1].detach().clone()) for each in _buffers(model)]
    forget_gradients(model)
    torch.clear_autocast_cache()  # its copies belong to a graph that is freed
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for module, name, buffer, values in buffers:
                setattr(module, name, buffer.copy_(values))
        rng.set_random_state(numbers)
        torch.clear_autocast_cache()


def forget_gradients(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def packed(model: torch.nn.Module, batch: object) -> torch.Tensor:
    """Return a micro-batch as bytes, with the buffers of the rank that it is of."""
    into = io.BytesIO()
    torch.save((batch, {name: local_of(buffer) for name, buffer in model.named_buffers()}), into)
    return torch.frombuffer(into.getbuffer(), dtype=torch.uint8).clone()


def passed(model: torch.nn.Module, loss_of: LossOf, content: torch.Tensor, seed: int) -> Table:
    """Compute a packed micro-batch on this rank with its owner's buffers and given random numbers. Return the digests.

    The owner unpacks it too, so that all ranks have it in memory in the same form.

    Raises:
        ValueError: ``loss_of`` returns no single number with a gradient.
    """
    batch, buffers = torch.load(io.BytesIO(content.numpy().tobytes()), map_location=_placer(model), weights_only=False)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            local = local_of(buffer)
            if (
                name in buffers and buffers[name].shape == local.shape
            ):  # else the results are unlike, and that is reported
                local.copy_(buffers[name])
    rng.seed_rank(seed, 0)
    gradients = _Gradients(model)
    with torch.enable_grad(), gradients.watched():
        loss = loss_of(model, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise ValueError("check_compute: the function must return the loss, one number with a gradient")
        torch.autograd.backward(loss)
    forget_gradients(model)
    return {LOSS: digests.digest_of(local_of(loss)), **gradients.read()}


def digest_of(table: Table) -> int:
    """Return one digest of all."""
    return sum(digests.share_of(digests.name_digest(name), each) for name, each in table.items()) & digests.MASK


class _Gradients:
    """Digests of the gradients of one backward pass, by parameter."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._watched: dict[int, torch.Tensor] = {}  # they live as long as their ids count
        self._begun: list[tuple[str, digests.Begun]] = []
        self._hooks: list[Any] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Take digests of the gradients that arrive meanwhile."""
        self._watch(self._model, "")
        for name, module in self._model.named_modules():
            if _is_sharding(module):
                self._hooks.append(module.register_forward_hook(self._after_forward(name), prepend=True))
        try:
            yield
        finally:
            while self._hooks:
                self._hooks.pop().remove()

    def read(self) -> Table:
        found: Table = {}
        for (name, _), digest in zip(self._begun, digests.read(each for _, each in self._begun), strict=True):
            found[name] = (found.get(name, 0) + digest) & digests.MASK
        return found

    def _after_forward(self, name: str) -> Callable[..., None]:
        """Return a hook that finds whole parameters, before the module gives them up after its forward pass."""

        def watch(module: torch.nn.Module, *_: object) -> None:
            self._watch(module, name)

        return watch

    def _watch(self, module: torch.nn.Module, prefix: str) -> None:
        for name, parameter in module.named_parameters(prefix):
            if parameter.requires_grad and id(parameter) not in self._watched:
                self._watched[id(parameter)] = parameter
                self._hooks.append(cast("Any", parameter).register_hook(self._taker(name)))

    def _taker(self, name: str) -> Callable[[torch.Tensor], None]:
        def take(gradient: torch.Tensor) -> None:
            self._begun.append((name, digests.begun([local_of(gradient)])))

        return take


def _placer(model: torch.nn.Module) -> Callable[[Any, str], Any]:
    """Return a rule by which tensors of another rank's GPU get to this rank's, and others stay in host memory."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))

    def place(storage: Any, location: str) -> Any:
        if location == "cpu":
            return storage
        return torch.serialization.default_restore_location(storage, str(device))  # type: ignore[no-untyped-call]

    return place


def _buffers(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            yield module, name, buffer


def _is_sharding(module: torch.nn.Module) -> bool:
    """Return whether ``fully_shard`` has the module's parameters."""
    return hasattr(module, "set_requires_gradient_sync")


def _is_between_steps(module: Any) -> bool:
    """Return whether ``fully_shard`` averages the gradients of a module now, and holds none; torch has no public way to
    ask.
    """
    if not _is_sharding(module):
        return True
    state = module._get_fsdp_state()  # noqa: SLF001
    return bool(state._state_ctx.is_last_backward) and all(map(_is_at_rest, state._fsdp_param_groups))  # noqa: SLF001


def _is_at_rest(group: Any) -> bool:
    holds_sums = group._partial_reduce_output is not None or any(  # noqa: SLF001
        each.unsharded_accumulated_grad is not None for each in group.fsdp_params
    )
    return bool(group.reduce_grads and group.all_reduce_grads) and not holds_sums
