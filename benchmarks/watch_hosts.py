"""Hosts on virtual time, each with the tracker of its own ranks, and the keeper that joins what they report.

Each host reads its ranks by its own turn, and so may see a hang later than another one by as much. Its report leaves
once stacks are taken, and the relay has its turn. The keeper judges at its own turn, once each host in contact has
reported (``control/watch/stalls.py``). All periods are the production constants.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from muster.domain.policy.watch import WatchPolicy
from tests.watch.progress.worlds import Rank
from watch.progress.tracker import Tracker
from workers.control.main import STALLS_S
from workers.host.main import LOG_RELAY_S
from workers.host.watch.host_watch import TURN_S
from workers.host.watch.stacks import SENSOR_WAIT_S

_KEEPER = -1


@dataclass
class Host:
    """One host: its ranks, its tracker, and when its report reaches the control plane; None: it has sent none."""

    ranks: Sequence[Rank]
    tracker: Tracker
    arrives_s: float | None = None

    def turn(self, now_s: float) -> None:
        """Read the ranks. A report waits for the stacks; a host that moves again takes its report back."""
        for rank in self.ranks:
            rank.advance(now_s)
        overdue = self.tracker.take([rank.report(now_s) for rank in self.ranks], now_s)
        if overdue is None:
            self.arrives_s = None
        elif self.arrives_s is None:
            self.arrives_s = now_s + SENSOR_WAIT_S + LOG_RELAY_S


@dataclass
class Hosts:
    """Hosts of one attempt and the keeper. ``lost``: hosts without contact, for which the keeper does not wait."""

    hosts: list[Host]
    rng: Random
    policy: WatchPolicy
    now_s: float = 1000.0
    lost: frozenset[int] = frozenset()
    _turns: list[tuple[float, int]] = field(default_factory=list)

    @classmethod
    def of(cls, ranks: Sequence[Rank], num_hosts: int, rng: Random) -> "Hosts":
        """Return hosts with as many ranks each, whose turns are at different moments of a second."""
        policy, width = WatchPolicy(), len(ranks) // num_hosts
        hosts = [Host(ranks[first : first + width], Tracker(policy)) for first in range(0, len(ranks), width)]
        found = cls(hosts, rng, policy)
        for rank in ranks:
            rank.until_s = rank.changed_s = found.now_s
        found._turns = [(found.now_s + rng.uniform(0, TURN_S), number) for number in range(len(hosts))]
        found._turns.append((found.now_s + rng.uniform(0, STALLS_S), _KEEPER))
        heapq.heapify(found._turns)
        return found

    @property
    def ranks(self) -> list[Rank]:
        return [rank for host in self.hosts for rank in host.ranks]

    def watch(self, seconds: float) -> float | None:
        """Return the moment at which the keeper judges the attempt, or None if it does not within ``seconds``."""
        for now_s, number in self._until(self.now_s + seconds):
            if number != _KEEPER:
                self.hosts[number].turn(now_s)
            elif self._is_due(now_s):
                return now_s
        return None

    def _until(self, end_s: float) -> Iterator[tuple[float, int]]:
        while self._turns[0][0] < end_s:
            now_s, number = heapq.heappop(self._turns)
            period_s = STALLS_S if number == _KEEPER else TURN_S
            heapq.heappush(self._turns, (now_s + period_s, number))
            self.now_s = now_s
            yield now_s, number
        self.now_s = end_s

    def _is_due(self, now_s: float) -> bool:
        """Return whether each host in contact has reported, or one has waited for as long as any phase may take."""
        in_contact = [host for number, host in enumerate(self.hosts) if number not in self.lost]
        arrived = [host.arrives_s for host in in_contact if host.arrives_s is not None and host.arrives_s <= now_s]
        waited_s = now_s - min(arrived, default=now_s)
        return bool(arrived) and (len(arrived) == len(in_contact) or waited_s >= self.policy.unknown.longest_s)
