"""What the judge of stragglers finds: slow ranks, ranks with more work, a slow network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.domain.policy.node_detectors import PairProbePolicy
from muster.domain.spread import Figure
from watch.stragglers.causes import StragglerCause
from watch.stragglers.network import Link, SlowNetwork


@dataclass(frozen=True, slots=True)
class OddFigure:
    """A figure of a rank that is apart from its peers' in some windows: means over them, and their first steps."""

    figure: Figure
    value: float
    usual: float
    num_peers: int
    firsts: tuple[int, ...]

    @property
    def is_low(self) -> bool:
        return self.value < self.usual


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank for which its peers wait. Times are means of a step over the windows in which it was slow.

    ``num_peers`` 0: it was compared with its own past. ``first_step`` and ``last_step``: of these windows.
    ``is_of_process``: its own process takes the time, so another host would not help. ``figure``: by which it was
    found, if its own compute alone did not show it; None: by its own compute.
    """

    rank: int
    cause: StragglerCause
    own_s: float
    usual_s: float
    wait_s: float | None
    usual_wait_s: float | None
    num_slow: int
    num_windows: int
    num_peers: int
    first_step: int
    last_step: int
    evidence: tuple[str, ...] = ()
    is_of_process: bool = False
    figure: OddFigure | None = None

    @property
    def ratio(self) -> float:
        return self.own_s / self.usual_s

    @property
    def slowdown(self) -> float:
        """The share of a step's time that its peers lose; 0 where a figure of its GPU shows no time."""
        if self.figure is not None:
            return 0.0
        step_s = self.own_s + (self.wait_s or 0.0)
        return min(max((self.own_s - self.usual_s) / step_s, 0.0), 1.0) if step_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Imbalance:
    """A rank that computes longer because it has more work. Ratios are to its peers; None: not reported.

    Without either ratio it computes longer since its first windows, and no reading of its host or GPU shows why.
    """

    rank: int
    own_ratio: float
    work_ratio: float | None
    memory_ratio: float | None
    first_step: int
    last_step: int
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings of the newest windows. ``slow_in``: in how many of them each rank was slow, if in any.

    ``first_step`` None: there were too few windows to judge. ``size``: steps of a window. ``long_waits``: all wait
    longer, and the program reports no work, so it is the network only if a link between the hosts is slow.
    ``low_power``: ranks whose GPUs draw less power than their peers' at the same utilisation. They wait, unless
    readings show that the GPU is slowed.
    """

    stragglers: tuple[Straggler, ...] = ()
    imbalances: tuple[Imbalance, ...] = ()
    network: SlowNetwork | None = None
    long_waits: SlowNetwork | None = None
    slow_in: Mapping[int, int] = field(default_factory=dict)
    first_step: int | None = None
    last_step: int = 0
    size: int = 0
    low_power: tuple[int, ...] = ()

    def with_links(self, links: Sequence[Link], limits: PairProbePolicy) -> "Judgement":
        """Return the judgement with what probes measured between the hosts of the ranks."""
        waits = self.network or self.long_waits
        return self if waits is None else replace(self, network=waits.with_links(links, limits))
