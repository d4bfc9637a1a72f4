"""Tensors within the inputs and outputs of a module."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def tensors_of(output: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a module's inputs or output: a tensor, sequence, mapping or dataclass of any depth."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for each in output.values():
            yield from tensors_of(each)
    elif isinstance(output, (list, tuple)):
        for each in output:
            yield from tensors_of(each)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from tensors_of(getattr(output, field.name, None))
