"""Lines about faults that a run on this machine notes: roots, each kind once, and the chosen transport."""

from workers.local.line_notes import MOST_NOTES, LineNotes

RETRIES = b"n1:98:12 [3] NCCL WARN NET/IB : Got completion from peer 10.7.1.9<40112> with error 12, opcode 129\n"
FLUSHED = b"n2:98:12 [0] NCCL WARN NET/IB : Got completion from peer 10.7.1.8<40112> with error 5, opcode 129\n"


def test_a_root_and_the_transport_are_reported_once_and_cascades_never() -> None:
    said: list[str] = []
    notes = LineNotes(said.append)
    for rank in "01":
        notes.take(rank, FLUSHED + RETRIES * 30 + b"ValueError: mine\n")
        notes.take(rank, b"n1:98:12 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n")
    assert [words.split(":")[0] for words in said] == [
        "rank 0 printed a line about a fault (network)",
        "NCCL chose socket (eth0) for traffic between hosts; within this machine it uses none",
    ]


def test_endless_new_choices_are_bounded() -> None:
    said: list[str] = []
    notes = LineNotes(said.append)
    for number in range(100):
        notes.take("0", f"n1:98:12 [0] NCCL INFO NET/Socket : Using [0]eth{number}:10.0.0.1<0>\n".encode())
    assert len(said) == MOST_NOTES
