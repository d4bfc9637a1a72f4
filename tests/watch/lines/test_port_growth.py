"""Growth of a port's retries, attributed to the attempts that used the port meanwhile."""

from collections.abc import Iterator
from typing import Any, ClassVar

from watch.lines.port_growth import Growth, Use, attributed

NODE = "node-a"


def growth(
    rise: float = 5.0, port: str = "mlx5_0/1", *, at: int = 100, counter: str = "local_ack_timeout_err"
) -> Growth:
    return Growth(NODE, port, counter, rise, at - 60, at)


def test_growth_is_of_the_attempt_whose_nccl_names_the_port_in_that_time() -> None:
    mine, other = Use("att_1", NODE, ("mlx5_0:1",), 0, 1_000), Use("att_2", NODE, ("mlx5_1:1",), 0, 1_000)
    later = Use("att_3", NODE, ("mlx5_0:1",), 500, 1_000)
    elsewhere = Use("att_4", "node-b", ("mlx5_0:1",), 0, 1_000)
    (found,) = attributed([growth(), growth(2.0, at=160)], [mine, other, later, elsewhere])
    assert (found.attempt_id, found.rise, found.num_users) == ("att_1", 7.0, 1)
    assert (found.node, found.port, found.counter) == (NODE, "mlx5_0/1", "local_ack_timeout_err")


def test_attempts_of_unknown_cards_share_what_none_that_is_known_uses() -> None:
    unknown = [Use("att_1", NODE, (), 0, 1_000), Use("att_2", NODE, (), 0, 1_000)]
    assert {each.num_users for each in attributed([growth()], unknown)} == {2}
    known = Use("att_3", NODE, ("mlx5_0",), 0, 1_000)
    assert [each.attempt_id for each in attributed([growth()], [*unknown, known])] == ["att_3"]
    assert attributed([growth(counter="rx_errors"), growth(-1.0)], unknown) == ()


class Counted(tuple[str, ...]):
    """Cards that count how often they are read."""

    __slots__ = ()
    num_reads: ClassVar[dict[int, int]] = {}

    def __iter__(self) -> Iterator[str]:
        self.num_reads[id(self)] = self.num_reads.get(id(self), 0) + 1
        return super().__iter__()


def test_the_cards_of_a_use_are_read_once_whatever_the_number_of_growths() -> None:
    cards = [Counted(f"mlx5_{number}:{port}" for port in range(64)) for number in range(20)]
    uses: Any = [Use(f"att_{number}", NODE, each, 0, 10**9) for number, each in enumerate(cards)]
    found = attributed([growth(1.0, "mlx5_3/2", at=at) for at in range(100, 2_100)], uses)
    assert [(each.attempt_id, each.rise) for each in found] == [("att_3", 2_000.0)]
    assert set(Counted.num_reads.values()) == {1}
