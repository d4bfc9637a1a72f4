"""A meeting of two hosts, as their lead asks for it."""

from muster.wire.meeting import PairwiseOrder


def meeting(*, rank: int = 0, timeout_s: float = 100.0) -> PairwiseOrder:
    return PairwiseOrder(
        round=1,
        key="pairwise/test/1/0",
        hosts=("gpu-00", "gpu-01"),
        rank=rank,
        address="127.0.0.1",
        port=1,
        device="cpu",
        gather_bytes=1024,
        num_gathers=1,
        timeout_s=timeout_s,
    )
