"""What of the free GPUs typical requests cannot use, and how taking some changes it: F of a host and of a domain.

After FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023), where F of a node is the sum over a mix of requests
of p × its free GPUs that the request cannot use; p is here a request's share of the GPUs asked for. A host serves a
request as often as its part goes into it, and gangs are told too: for them F of a domain is p × the GPUs of its wholly
free hosts beyond a whole number of gangs, at the narrowest level that can hold one, or at the level that it requires.
F of a host hangs on its free GPUs alone and F of a domain on its wholly free hosts alone: tables say both, in GPUs ×
thousandths of the mix, whole numbers so that what is equal is equal exactly (I19).
"""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from muster.domain.policy.placement import FragmentationPolicy
from scheduler.fleet.layout import NOWHERE, Layout
from scheduler.fleet.tally import Ints, Tally, least_of
from scheduler.model import RunningAttempt, Shape, WaitingJob

if TYPE_CHECKING:
    from scheduler.fleet.topology import FleetState
    from scheduler.solve.request import Request

MAX_SHAPES: Final = 32
"""Of so many shapes, those in which most GPUs are asked for, F is told."""
_THOUSANDTHS: Final = 1_000

Mix = tuple[tuple[Shape, float], ...]
"""Shapes, and how many jobs ask for each."""


def mix_of(
    policy: FragmentationPolicy, running: Iterable[RunningAttempt] = (), queue: Iterable[WaitingJob] = ()
) -> Mix:
    """What tenants ask for, by what runs and waits beside the policy's typical requests; nothing where it does not
    count.
    """
    if not policy.is_weighed:
        return ()
    asked = [one.asked for one in running if one.asked is not None]
    numbers = Counter((shape.nodes, shape.gpus_per_node, shape.required) for shape in asked)
    numbers.update((job.nodes, job.gpus_per_node, job.required_level) for job in queue)
    found = {Shape(*shape): float(number) for shape, number in numbers.items()}
    total = sum(one.weight for one in policy.typical.values())
    typical_jobs = policy.typical_jobs if found else policy.typical_jobs or 1.0
    for _, one in sorted(policy.typical.items()):
        shape = Shape(one.nodes, one.gpus_per_node, one.level)
        found[shape] = found.get(shape, 0.0) + typical_jobs * one.weight / total
    return tuple(sorted(((shape, number) for shape, number in found.items() if number), key=lambda one: one[0].key))


def _shares(layout: Layout, mix: Mix) -> list[tuple[Shape, int, int | None]]:
    """What part of the GPUs is asked for in each shape, in thousandths, and at which level it is told; None: a host's.

    What no domain of the fleet can hold, and what only the fleet as a whole can, fragments nothing.
    """
    told = [(shape, number * shape.nodes * shape.gpus_per_node) for shape, number in mix]
    told = [(shape, gpus) for shape, gpus in told if shape.nodes == 1 or _level_of(layout, shape) is not None]
    most = sorted(told, key=lambda one: (-one[1], one[0].key))[:MAX_SHAPES]
    total = sum(gpus for _, gpus in most)
    return [
        (shape, round(gpus / total * _THOUSANDTHS), None if shape.nodes == 1 else _level_of(layout, shape))
        for shape, gpus in most
    ]


class Fragments:
    """F by table, of one layout and mix. ``of_host[f]``: of a host with f free GPUs."""

    __slots__ = ("_domains", "_own", "_rises", "_rows", "least_of_one", "levels", "of_host")

    def __init__(self, layout: Layout, mix: Mix) -> None:
        free = np.arange(int(layout.cell_size.max(initial=0)) + 1)
        self.of_host: Ints = np.zeros(len(free), dtype=np.int64)
        shares = _shares(layout, mix)
        for shape, share, _ in shares:
            self.of_host += share * (free % shape.gpus_per_node)
        self._domains = tuple(_of_domains(layout, shares, level) for level in range(layout.node_level))
        self.levels = tuple(level for level, table in enumerate(self._domains) if table is not None)
        """Those at which the mix has gangs, widest first: in domains of others nothing is left over."""
        self._rows = tuple(layout.width_of_cell[first] for first in layout.first_cell)
        self.least_of_one = sum(int(_rise(self._table(level), 1)[:, 1:].min()) for level in self.levels)
        """No wholly free host less adds less than this at all levels together."""
        self._own: dict[int, Ints] = {}
        self._rises: dict[tuple[int, int], Ints] = {}

    def own_rise(self, gpus: int) -> Ints:
        """By free GPUs of a host, what taking so many of them adds to its F; 0 where it has fewer."""
        found = self._own.get(gpus)
        if found is None:
            found = self._own[gpus] = _rise(self.of_host[None, :], gpus)[0]
        return found

    def of_domains(self, level: int, groups: Ints, whole: Ints) -> Ints:
        """F of these groups of one of ``levels``, by their wholly free hosts."""
        return self._found(self._table(level), level, groups, whole)

    def rises(self, level: int, groups: Ints, whole: Ints, taken: int | Ints) -> Ints:
        """What taking so many of its wholly free hosts adds to the F of each of these groups, which has as many."""
        if not isinstance(taken, int):
            return self.of_domains(level, groups, whole - taken) - self.of_domains(level, groups, whole)
        table = self._rises.get((level, taken))
        if table is None:
            table = self._rises[level, taken] = _rise(self._table(level), taken)
        return self._found(table, level, groups, whole)

    def _table(self, level: int) -> Ints:
        table = self._domains[level]
        if table is None:
            message = f"level {level} is none of those at which the mix has gangs: a bug of ours"
            raise AssertionError(message)
        return table

    def _found(self, table: Ints, level: int, groups: Ints, whole: Ints) -> Ints:
        found: Ints = table[0][whole] if len(table) == 1 else table[self._rows[level][groups], whole]
        return found


def _rise(table: Ints, by: int) -> Ints:
    rise = np.zeros_like(table)
    if by < table.shape[1]:
        rise[:, by:] = table[:, : table.shape[1] - by] - table[:, by:]
    return rise


def _of_domains(layout: Layout, shares: list[tuple[Shape, int, int | None]], level: int) -> Ints | None:
    """A row for each width of hosts, then by wholly free hosts."""
    whole, table, is_of_any = np.arange(layout.largest[level] + 1), [], False
    for width in layout.host_widths:
        row = np.zeros(len(whole), dtype=np.int64)
        for shape, share, told_at in shares:
            if told_at == level and _takes_whole(shape, width):
                row += share * shape.gpus_per_node * (whole % shape.nodes)
                is_of_any = True
        table.append(row)
    return np.array(table) if is_of_any else None


def _takes_whole(shape: Shape, width: int) -> bool:
    """Hosts of the gang give it so much that no second one has room beside it; others are told by their hosts alone."""
    return width // 2 < shape.gpus_per_node <= width


def _level_of(layout: Layout, shape: Shape) -> int | None:
    """None: no domain of this fleet can hold it, or only the fleet itself, where all places are one."""
    required = None if shape.required is None else layout.level(shape.required)
    levels = range(layout.node_level - 1, 0, -1) if required is None else (required,)
    return next((level for level in levels if layout.largest[level] >= shape.nodes), None)


def whole_hosts(state: "FleetState", tier: str) -> Tally:
    """Hosts with as many usable GPUs as most of their cohort have in all; ``state``: laid out for the tier."""
    layout = state.layout
    if len(layout.host_widths) == 1:
        return state.tally(tier, layout.host_widths[0])
    counts = state.tier(tier).counts
    return state.kept((whole_hosts, tier), lambda: Tally(layout, counts, layout.whole_size))


def least_raising(state: "FleetState", request: "Request", room: Tally, level: int, homes: Ints) -> Ints:
    """Those of ``homes``, groups of ``level``, where the request raises F least; of equals those around which it does.

    The narrowest level goes first, where room is scarcest: so a gang that takes parts of hosts goes where it breaks the
    fewest wholly free ones. Below a home it is not known yet which hosts are taken: ``scheduler.solve.host_choice``
    asks there.
    """
    if level == state.layout.node_level:
        return _least_raising_hosts(state, request, room, homes)
    is_of_whole = _takes_whole_hosts(state, request)
    if not is_of_whole:
        homes = least_of(homes, _num_broken(state, request, room, level, homes))
    levels = state.fragments.levels
    if not levels or levels[0] > level:
        return homes
    tally = whole_hosts(state, request.tier)
    for wider in reversed(levels):
        if wider <= level and len(homes) > 1:
            around = homes if wider == level else state.layout.around(level, wider)[homes]
            taken = request.nodes if is_of_whole else _num_broken(state, request, room, level, homes)
            homes = least_of(homes, _known_rises(state, tally, wider, around, taken))
    return homes


def rises(state: "FleetState", request: "Request", level: int, groups: Ints, fitting: Ints, num_nodes: int) -> Ints:
    """What so many hosts' parts in each of these groups, which have ``fitting`` hosts for it, add to its own F.

    ``level``: one of those of the state's ``fragments``.
    """
    whole = whole_hosts(state, request.tier).num_cells(level)[groups]
    taken = num_nodes if _takes_whole_hosts(state, request) else _broken(num_nodes, fitting, whole)
    return state.fragments.rises(level, groups, whole, taken)


def _num_broken(state: "FleetState", request: "Request", room: Tally, level: int, homes: Ints) -> Ints:
    """How many wholly free hosts a gang that takes parts of hosts takes of each home."""
    whole = whole_hosts(state, request.tier).num_cells(level)[homes]
    return _broken(request.nodes, room.num_cells(level)[homes], whole)


def _broken(num_nodes: int, fitting: Ints, whole: Ints) -> Ints:
    """Hosts partly in use are taken before wholly free ones."""
    broken: Ints = np.minimum(np.maximum(num_nodes - fitting + whole, 0), np.minimum(whole, num_nodes))
    return broken


def _takes_whole_hosts(state: "FleetState", request: "Request") -> bool:
    """None that fits is partly in use."""
    return state.layout.host_widths == (request.gpus_per_node,)


def _known_rises(state: "FleetState", tally: Tally, level: int, groups: Ints, taken: int | Ints) -> Ints:
    """Nothing is known of what stands around a place that is not known itself."""
    whole = tally.num_cells(level)
    if not len(state.layout.unknown_cells[level]):
        return state.fragments.rises(level, groups, whole[groups], taken)
    is_known = groups != NOWHERE
    taken, groups = taken if isinstance(taken, int) else taken[is_known], groups[is_known]
    found = np.zeros(len(is_known), dtype=np.int64)
    found[is_known] = state.fragments.rises(level, groups, whole[groups], taken)
    return found


def _least_raising_hosts(state: "FleetState", request: "Request", room: Tally, cells: Ints) -> Ints:
    """Hosts partly in use are told by their free GPUs alone; a wholly free one also by what its domains have left."""
    layout, fragments = state.layout, state.fragments
    own, racks = fragments.own_rise(request.gpus_per_node), layout.node_level - 1
    if _takes_whole_hosts(state, request):
        return _least_around(state, request, room, cells)
    counts = room.usable[cells]
    if not fragments.levels:
        return least_of(cells, own[counts])
    if len(layout.host_widths) == 1:
        (width,) = layout.host_widths
        at_best = own.copy()
        at_best[width:] += fragments.least_of_one
        of_each = at_best[counts]
        least = of_each.min()
        if least < at_best[width:].min():
            partly: Ints = cells[of_each == least]
            return partly  # no wholly free host is as good, whatever stands around it
    of_each = own[counts]
    if racks in fragments.levels:
        of_each += _rises_of_one(state, room, request.tier, racks, cells)
    return _least_around(state, request, room, least_of(cells, of_each), racks)


def _least_around(state: "FleetState", request: "Request", room: Tally, cells: Ints, within: int | None = None) -> Ints:
    """Those whose domains lose least, the narrowest level first. ``within``: of wider levels alone."""
    for level in reversed(state.fragments.levels):
        if len(cells) > 1 and (within is None or level < within):
            cells = least_of(cells, _rises_of_one(state, room, request.tier, level, cells))
    return cells


def _rises_of_one(state: "FleetState", room: Tally, tier: str, level: int, cells: Ints) -> Ints:
    """What each cell adds to the domain around it as it is wholly free no more; 0 where it is in use, or in none."""
    tally, layout = whole_hosts(state, tier), state.layout
    of_groups = np.zeros(layout.num_groups[level] + 1, dtype=np.int64)  # the last is of unknown place
    groups = tally.num_cells(level)[:-1].nonzero()[0]
    of_groups[groups] = state.fragments.rises(level, groups, tally.num_cells(level)[groups], 1)
    found: Ints = of_groups[layout.groups[level][cells]]
    return found if room is tally else np.where(tally.usable[cells] > 0, found, 0)
