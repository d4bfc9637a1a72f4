import pytest

from watch.lines.reader import LineReader
from watch.lines.transports import ChosenTransport, Transport, rdma_warning, transport_words

INFO = "gpu01:35:35 [0] NCCL INFO "


def chosen(*lines: str) -> ChosenTransport | None:
    reader = LineReader(rank=0)
    reader.feed("".join(f"{INFO}{line}\n" for line in lines).encode())
    return reader.transport


@pytest.mark.parametrize(
    ("lines", "transport", "words"),
    [
        (("NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB enp220s0np0:11.1.1.12<0>", "Using network IB"),
         Transport.RDMA, "rdma (mlx5_10:1, mlx5_11:1)"),
        (("NET/IB : No device found.", "NET/Socket : Using [0]ens3:172.31.12.210<0>", "Using network Socket"),
         Transport.SOCKET, "socket (ens3)"),
        (("NET/IB : No device found.", "NET/Socket : Using [0]ens3:172.31.12.210<0>"),
         Transport.SOCKET, "socket (ens3)"),
        (("Using network AWS Libfabric",), Transport.LIBFABRIC, "libfabric"),
    ],
)  # fmt: skip
def test_the_transport_is_the_one_that_nccl_states(lines: tuple[str, ...], transport: Transport, words: str) -> None:
    found = chosen(*lines)
    assert found is not None
    assert found.transport is transport
    assert transport_words(found) == words


def test_sockets_where_rdma_was_expected_are_a_warning_with_the_reason() -> None:
    none_found = chosen("NET/IB : No device found.", "NET/Socket : Using [0]ens3:1.2.3.4<0>")
    warning = rdma_warning(none_found, is_rdma_expected=True)
    assert warning is not None
    assert warning.startswith(
        "NCCL uses sockets over ens3 between hosts that have RDMA ports: it found no RDMA device."
    )
    not_used = chosen("NET/IB : Using [0]mlx5_0:1/RoCE", "Using network Socket")
    assert "did not choose it" in (rdma_warning(not_used, is_rdma_expected=True) or "")


@pytest.mark.parametrize("lines", [(), ("Using network IB",), ("Using network AWS Libfabric",)])
def test_no_warning_without_sockets_or_without_a_word_of_nccl(lines: tuple[str, ...]) -> None:
    assert rdma_warning(chosen(*lines), is_rdma_expected=True) is None
    assert rdma_warning(chosen("Using network Socket"), is_rdma_expected=False) is None
