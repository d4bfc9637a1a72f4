"""Stragglers of a run on this machine: the same judge as in a fleet, with a sentence for each slow rank."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from muster.domain.policy.stragglers import StragglerPolicy
from muster.wire.training import Pace
from watch.stragglers.causes import StragglerCause
from watch.stragglers.findings import Judgement
from watch.stragglers.judge import is_over, judge
from watch.stragglers.sentences import RankName, network_verdict, verdict_of, words_of
from watch.stragglers.windows import Folding, RankWindows


@dataclass(slots=True)
class LocalStragglers:
    """Windows of the ranks of one attempt. ``report``: takes a sentence; each finding is reported once while it lasts.

    A rank that was slow because it computes longer is reported again once a reading explains it. ``_spans``: first and
    last step of the finding on each slow rank.
    """

    rules: StragglerPolicy
    num_ranks: int
    report: Callable[[str], None]
    _open: dict[int, Folding] = field(default_factory=dict)
    _closed: dict[int, RankWindows] = field(default_factory=dict)
    _slow: dict[int, StragglerCause] = field(default_factory=dict)
    _spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    _uneven: set[int] = field(default_factory=set)
    _is_network_slow: bool = False

    def take(self, rank: int, pace: Pace) -> None:
        """Take a rank's report, and judge once a window of it is over."""
        if not self.rules.is_on or not 0 <= rank < self.num_ranks:
            return
        before = self._open.get(rank, Folding())
        figures = msgspec.structs.asdict(pace)
        self._open[rank], window = before.with_pace(pace.step, figures, self.rules.window_s)
        if window is not None:
            known = self._closed.get(rank, RankWindows(rank, 0))
            self._closed[rank] = known.with_window(before.size, before.place, window)
            self._judge()

    def _judge(self) -> None:
        found = judge([self._closed[rank] for rank in sorted(self._closed)], self.rules, named=self._slow)
        if found.first_step is None:
            return
        self._end(found)
        for each in found.stragglers:
            first_step, _ = self._spans.get(each.rank, (each.first_step, 0))
            self._spans[each.rank] = first_step, each.last_step
            known = self._slow.get(each.rank)
            is_explained = known is StragglerCause.COMPUTE and each.cause is not StragglerCause.COMPUTE
            if known is None or is_explained:
                self._slow[each.rank] = each.cause
                verdict = verdict_of(each, RankName())
                evidence = f" ({'; '.join(verdict.evidence)})" if verdict.evidence else ""
                self.report(f"straggler: {verdict.sentence}{evidence}")
        if found.network is not None and not self._is_network_slow:
            self._is_network_slow = True
            self.report(f"straggler: {network_verdict(found.network, RankName()).sentence}")
        for uneven in found.imbalances:
            if uneven.rank not in self._uneven:
                self._uneven.add(uneven.rank)
                self.report(f"imbalance: {words_of(uneven)}")

    def _end(self, found: Judgement) -> None:
        quiet = [each for each in self._slow if each not in found.slow_in]
        for rank in [each for each in quiet if is_over(found, *self._spans[each])]:
            del self._slow[rank], self._spans[rank]
            self.report(f"rank {rank} is not slow any more")
        self._is_network_slow = self._is_network_slow and found.network is not None
