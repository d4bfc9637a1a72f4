"""Verdicts on stragglers: what was found, as one sentence with rank, host, GPU, figures and cause."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from muster.domain.job.verdicts import VerdictKind
from muster.domain.spread import Figure
from watch.phases import Phase
from watch.stragglers.causes import StragglerCause
from watch.stragglers.findings import Imbalance, OddFigure, Straggler
from watch.stragglers.gpu_figures import words_of_figure
from watch.stragglers.network import SlowNetwork
from watch.verdicts import Verdict

_IN_WORDS: Final[Mapping[StragglerCause, str]] = {
    StragglerCause.COMPUTE: "it computes longer, and no reading shows why",
    StragglerCause.DATA: "it waits for its data",
    StragglerCause.HOST: "its host or process takes processor time from it",
    StragglerCause.GPU: "its GPU runs at a lower clock or is throttled",
}
_FIGURE_WORDS: Final[Mapping[Figure, str]] = {
    Figure.UTILISATION: "Its GPU waits for its host, while theirs are kept busy by collectives that wait for it.",
    Figure.MFU: "Its steps take longer than theirs, which do not wait for it.",
}
_POWER_WORDS: Final[Mapping[bool, str]] = {
    False: "At the same utilisation its GPU computes while theirs wait for it in collectives, and steps got longer.",
    True: "At the same utilisation its GPU does less, and is slowed.",
}
"""By whether the power is low."""


@dataclass(frozen=True, slots=True)
class RankName:
    """The host and the GPU of a rank; empty where unknown."""

    node: str = ""
    gpu: str = ""


def verdict_of(found: Straggler, name: RankName) -> Verdict:
    """Return the verdict on a slow rank."""
    return Verdict(
        kind=VerdictKind.STRAGGLER,
        cause=found.cause,
        ranks=(found.rank,),
        node=name.node,
        gpu=name.gpu,
        phase=Phase.STEP,
        step=found.first_step,
        operation="",
        frame=None,
        evidence=found.evidence,
        sentence=_by_time(found, name) if found.figure is None else _by_figure(found, found.figure, name),
    )


def _by_figure(found: Straggler, odd: OddFigure, name: RankName) -> str:
    words = _POWER_WORDS[odd.is_low] if odd.figure is Figure.POWER else _FIGURE_WORDS[odd.figure]
    return (
        f"{_where(found.rank, name)} stands apart from the {odd.num_peers} ranks of its place: {words_of_figure(odd)}, "
        f"in {found.num_slow} of {found.num_windows} windows. {words} Cause: {_IN_WORDS[found.cause]}."
    )


def _by_time(found: Straggler, name: RankName) -> str:
    compared = (
        f"than the {found.num_peers} ranks of its place" if found.num_peers > 1 else "than the other rank of its place"
    )
    compared = compared if found.num_peers else "than before"
    waits = ""
    if found.num_peers and found.wait_s is not None and found.usual_wait_s is not None:
        waits = f"; it waits for others {found.wait_s:.3f} s, and they wait {found.usual_wait_s:.3f} s"
    return (
        f"{_where(found.rank, name)} computes {found.ratio - 1:.0%} longer {compared}: {found.own_s:.3f} s a step, "
        f"usual {found.usual_s:.3f} s, in {found.num_slow} of {found.num_windows} windows{waits}. "
        f"Cause: {_IN_WORDS[found.cause]}."
    )


def network_verdict(found: SlowNetwork, name: RankName) -> Verdict:
    """Return the verdict that collectives take longer, with the slow link if probes name one.

    ``name``: of its first rank. A host is named only if several slow links have it in common.
    """
    between = f" Ranks {found.pair[0]} and {found.pair[1]}: {found.evidence[0]}." if found.pair else ""
    between += f" Host {found.host} is an end of each of several slow links." if found.host else ""
    sentence = (
        f"All ranks wait longer in collectives: {found.wait_s:.3f} s a step, before {found.usual_wait_s:.3f} s, in "
        f"{found.num_slow} of {found.num_windows} windows, and none computes longer. Cause: the network.{between}"
    )
    return Verdict(
        kind=VerdictKind.STRAGGLER,
        cause=StragglerCause.NETWORK,
        ranks=found.pair,
        node=name.node if found.host else "",
        gpu="",
        phase=Phase.STEP,
        step=found.first_step,
        operation="",
        frame=None,
        evidence=found.evidence,
        sentence=sentence,
    )


def words_of(found: Imbalance) -> str:
    """Return sentences about a rank with more work. It is no fault of its host."""
    if found.work_ratio is None and found.memory_ratio is None:
        readings = f" ({'; '.join(found.evidence)})" if found.evidence else ""
        return (
            f"Rank {found.rank} computes {found.own_ratio - 1:.0%} longer than its peers since its first windows, and "
            f"no reading of its host or GPU shows why{readings}: it counts as additional work of the program, such as "
            "logs or metrics on one rank. If the program has none there, start the job on other hosts and compare."
        )
    more = []
    if found.work_ratio is not None:
        more.append(f"{found.work_ratio - 1:.0%} more work (tokens or samples)")
    if found.memory_ratio is not None:
        more.append(f"{found.memory_ratio - 1:.0%} more memory")
    return (
        f"Rank {found.rank} computes {found.own_ratio - 1:.0%} longer than its peers, and has {' and '.join(more)}: "
        "the work is shared out unevenly."
    )


def _where(rank: int, name: RankName) -> str:
    place = ", ".join(each for each in (name.node and f"host {name.node}", name.gpu and f"GPU {name.gpu}") if each)
    return f"Rank {rank} ({place})" if place else f"Rank {rank}"
