"""The judgement of the network: all ranks wait longer than before, and none computes longer.

A larger model or longer sequences have more to exchange. So it needs reported work that is as before or, where the
program reports none, a link between the ranks' hosts that probes find slow.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from muster.domain.policy.node_detectors import PairProbePolicy
from muster.domain.policy.stragglers import StragglerPolicy
from muster.domain.robust import figures_in
from watch.stragglers.compare import LEAST_PAST, Group, one_at, usual_of

MOST_LINKS: Final = 8
"""Slow links that are evidence of one verdict."""


@dataclass(frozen=True, slots=True)
class Link:
    """The newest probe from the host of one rank to that of another: small messages, each with an answer.

    ``lost``: the share without an answer. ``p99_us``: the round trip in µs; None without any answer.
    """

    ranks: tuple[int, int]
    hosts: tuple[str, str]
    sent: float
    lost: float
    p99_us: float | None

    def is_slow(self, limits: PairProbePolicy) -> bool:
        is_late = self.p99_us is not None and self.p99_us > limits.round_trip_p99_us
        return is_late or self.is_lossy(limits)

    def is_lossy(self, limits: PairProbePolicy) -> bool:
        return self.sent >= limits.sent_min and self.lost > limits.lost_share

    def words(self, limits: PairProbePolicy) -> str:
        between = f"between host {self.hosts[0]} and host {self.hosts[1]}"
        if self.is_lossy(limits):
            return f"{self.lost:.1%} of {self.sent:.0f} messages {between} were lost"
        return f"messages {between} take {(self.p99_us or 0.0) / 1000:.1f} ms there and back (p99)"


@dataclass(frozen=True, slots=True)
class SlowNetwork:
    """All ranks wait longer than before, and none computes longer.

    ``is_work_known``: the program reports its work, which is as before. ``pair``: the ranks of the slowest link by
    probes, if one is slow. ``host``: the host that most slow links have in common; empty for a single link, of which
    either end may be the cause.
    """

    wait_s: float
    usual_wait_s: float
    num_slow: int
    num_windows: int
    first_step: int
    last_step: int
    is_work_known: bool
    pair: tuple[int, ...] = ()
    host: str = ""
    evidence: tuple[str, ...] = ()

    def with_links(self, links: Sequence[Link], limits: PairProbePolicy) -> "SlowNetwork | None":
        """Return this with the slow ones of ``links``. None: the work is not known, and no link is slow."""
        slow = [each for each in links if each.is_slow(limits)]
        if not slow:
            return self if self.is_work_known else None
        host = _common_host(slow)
        slow.sort(key=lambda each: (host not in each.hosts, -each.lost, -(each.p99_us or 0.0), each.ranks))
        ranks = slow[0].ranks if host in {"", slow[0].hosts[0]} else slow[0].ranks[::-1]
        return replace(self, pair=ranks, host=host, evidence=tuple(each.words(limits) for each in slow[:MOST_LINKS]))


def slow_network(
    aligned: Group,
    firsts: Sequence[int],
    recent: Sequence[int],
    rules: StragglerPolicy,
) -> SlowNetwork | None:
    """Return that collectives take longer than before, if each rank waits longer and none computes longer.

    Without reported work the cause may be what the ranks exchange, so it needs a slow link (``with_links``).
    """
    past = [first for first in firsts if first < recent[0]]
    if len(aligned) < 2 or len(past) < LEAST_PAST:
        return None
    slow = [first for first in recent if _all_wait_longer(aligned, first, past, rules)]
    if len(slow) < rules.num_slow:
        return None
    waits = figures_in(windows[each].get("wait_s") for windows in aligned.values() for each in slow if each in windows)
    before = figures_in(windows[each].get("wait_s") for windows in aligned.values() for each in past if each in windows)
    is_work_known = all(
        "work" in windows[each].means for windows in aligned.values() for each in (*past, *slow) if each in windows
    )
    return SlowNetwork(
        statistics.median(waits),
        statistics.median(before),
        len(slow),
        len(recent),
        slow[0] + 1,
        one_at(aligned, slow[-1]).last_step,
        is_work_known,
    )


def _all_wait_longer(aligned: Group, first: int, past: Sequence[int], rules: StragglerPolicy) -> bool:
    own_ratios: list[float] = []
    for windows in aligned.values():
        before = [windows[each] for each in past if each in windows]
        window = windows.get(first)
        if window is None or len(before) < LEAST_PAST:
            return False
        usual, wait_s, work = usual_of(before), window.least_wait_s, window.get("work")
        waits = [each.least_wait_s for each in before if each.least_wait_s is not None]
        if len(waits) < len(before) or wait_s is None or usual.own_s <= 0:
            return False
        usual_wait_s = statistics.median(waits)
        if wait_s - usual_wait_s < (rules.ratio - 1) * (usual.own_s + usual_wait_s):
            return False
        if usual.work and work is not None and abs(work / usual.work - 1) > rules.ratio - 1:
            return False  # it may have more to exchange
        own_ratios.append(window.means["own_s"] / usual.own_s)
    # Of a window the least waits count, so a pause of one rank explains none of them.
    return statistics.median(own_ratios) < 1 + (rules.ratio - 1) / 2


def _common_host(links: Sequence[Link]) -> str:
    """Return the host of several slow links with different others, if no second one has as many; else nothing."""
    pairs = {frozenset(each.hosts) for each in links}
    counts = Counter(host for pair in pairs for host in pair).most_common(2)
    return counts[0][0] if counts[0][1] > 1 and counts[0][1] > counts[1][1] else ""
