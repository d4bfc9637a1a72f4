"""An operation of a program whose result was suspect: a burn-in repeats it. A tenant states it, so it is bounded."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Edge = Annotated[int, Meta(ge=1, le=1 << 16)]


class SuspectOperation(Struct, frozen=True, kw_only=True):
    """The operation of the module whose tensor is suspect: ``shape`` of its weight, and the mean size of a value."""

    kind: Literal["matmul", "conv2d"]
    shape: Annotated[tuple[Edge, ...], Meta(min_length=2, max_length=4)]
    dtype: Literal["float64", "float32", "float16", "bfloat16"]
    magnitude: Annotated[float, Meta(ge=0, le=1e30)] = 0.0
