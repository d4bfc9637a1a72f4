"""Retries and timeouts of network ports, attributed to the jobs that used the port while they grew. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

RETRY_COUNTERS: Final = (
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "rnr_nak_retry_err",
    "roce_slow_restart",
    "link_downed",
    "link_error_recovery",
    "port_xmit_discards",
)
"""Counters of a port whose growth slows or ends collectives: retries, timeouts, lost packets, a lost link."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of one counter of a port. Times are by the clock of its host."""

    node: str
    port: str
    counter: str
    rise: float
    from_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Use:
    """An attempt on a host. ``cards``: network cards by NCCL, such as ``mlx5_0:1``; empty if unknown."""

    attempt_id: str
    node: str
    cards: tuple[str, ...]
    from_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class PortShare:
    """Growth while an attempt used the port. ``num_users``: attempts that used it meanwhile, this one included."""

    attempt_id: str
    node: str
    port: str
    counter: str
    rise: float
    num_users: int


@dataclass(frozen=True, slots=True)
class _Ports:
    """A use with the ports that its cards may be."""

    use: Use
    ports: frozenset[str]


def attributed(growths: Iterable[Growth], uses: Sequence[Use]) -> tuple[PortShare, ...]:
    """Return what grew while each attempt used the port, summed over time, the largest first.

    Attempts that state the port go before those whose cards are unknown. One that states other cards has no part.
    """
    by_node: dict[str, list[_Ports]] = {}
    for use in uses:
        by_node.setdefault(use.node, []).append(_Ports(use, _ports_of(use.cards)))
    users: dict[tuple[str, str, int, int], list[str]] = {}
    sums: dict[tuple[str, str, str, str], tuple[float, int]] = {}
    for growth in growths:
        if growth.counter not in RETRY_COUNTERS or growth.rise <= 0:
            continue
        moment = growth.node, growth.port, growth.from_ms, growth.until_ms  # one report has many counters
        if moment not in users:
            users[moment] = _users(by_node.get(growth.node, ()), growth)
        for attempt_id in users[moment]:
            key = attempt_id, growth.node, growth.port, growth.counter
            rise, num_users = sums.get(key, (0.0, 0))
            sums[key] = rise + growth.rise, max(num_users, len(users[moment]))
    found = (PortShare(*key, rise, num_users) for key, (rise, num_users) in sums.items())
    return tuple(sorted(found, key=lambda each: (-each.rise, each.node, each.port, each.counter)))


def _users(uses: Iterable[_Ports], growth: Growth) -> list[str]:
    """Return the attempts that used the port meanwhile: by their stated cards, else by unknown cards."""
    at_that_time = [
        each for each in uses if each.use.from_ms <= growth.until_ms and growth.from_ms <= each.use.until_ms
    ]
    stating = [each.use.attempt_id for each in at_that_time if growth.port in each.ports]
    return stating or [each.use.attempt_id for each in at_that_time if not each.ports]


def _ports_of(cards: Iterable[str]) -> frozenset[str]:
    """Return the ports that NCCL's cards may be: ``mlx5_0:1`` is ``mlx5_0/1``, and ``eth0`` is ``eth0``."""
    found: set[str] = set()
    for card in cards:
        name, _, number = card.partition(":")
        found |= {name, f"{name}/{number or '1'}"}
    return frozenset(found)
