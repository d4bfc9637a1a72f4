"""Fragmentation: the free GPUs that typical requests cannot use, and how a placement changes it.

After FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023). There F of a node is the sum, over a mix of
requests, of p × the free GPUs that the request cannot use. Here p is a request's share of the requested GPUs. A host
serves a request as often as its part fits into it. Gangs count too: for them F of a domain is p × the GPUs of its
wholly free hosts beyond a whole number of gangs, at the narrowest level that can hold one, or at the required level. F
of a host depends on its free GPUs alone, and F of a domain on its wholly free hosts alone, so both are tables. They are
in GPUs × thousandths of the mix: whole numbers, so that equal values are exactly equal (I19).
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
"""F counts so many shapes, the ones with the most requested GPUs."""
_THOUSANDTHS: Final = 1_000

Mix = tuple[tuple[Shape, float], ...]
"""Shapes, and how many jobs request each."""


def mix_of(
    policy: FragmentationPolicy, running: Iterable[RunningAttempt] = (), queue: Iterable[WaitingJob] = ()
) -> Mix:
    """Return the mix of the running and pending jobs and the policy's typical requests.

    It is empty if the policy does not weigh fragmentation.
    """
    if not policy.is_weighed:
        return ()
    asked = [one.requested for one in running if one.requested is not None]
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
    """Return each shape with its share of the requested GPUs in thousandths, and the level at which it counts.

    The level is None for a shape of one host. A shape that no domain of the fleet can hold, or only the fleet as a
    whole, is left out: it fragments nothing.
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
    """The tables of F for one layout and mix. ``of_host[f]``: F of a host with f free GPUs."""

    __slots__ = ("_domains", "_own", "_rises", "_rows", "least_of_one", "levels", "of_host")

    def __init__(self, layout: Layout, mix: Mix) -> None:
        free = np.arange(int(layout.cell_size.max(initial=0)) + 1)
        self.of_host: Ints = np.zeros(len(free), dtype=np.int64)
        shares = _shares(layout, mix)
        for shape, share, _ in shares:
            self.of_host += share * (free % shape.gpus_per_node)
        self._domains = tuple(_of_domains(layout, shares, level) for level in range(layout.node_level))
        self.levels = tuple(level for level, table in enumerate(self._domains) if table is not None)
        """The levels at which the mix has gangs, widest first: in domains of others nothing is left over."""
        self._rows = tuple(layout.width_of_cell[first] for first in layout.first_cell)
        self.least_of_one = sum(int(_rise(self._table(level), 1)[:, 1:].min()) for level in self.levels)
        """Taking one wholly free host adds at least this at all levels together."""
        self._own: dict[int, Ints] = {}
        self._rises: dict[tuple[int, int], Ints] = {}

    def own_rise(self, gpus: int) -> Ints:
        """Return, by free GPUs of a host, what taking so many of them adds to its F; 0 if it has fewer."""
        found = self._own.get(gpus)
        if found is None:
            found = self._own[gpus] = _rise(self.of_host[None, :], gpus)[0]
        return found

    def of_domains(self, level: int, groups: Ints, whole: Ints) -> Ints:
        """Return F of these groups of one of ``levels``, by their wholly free hosts."""
        return self._found(self._table(level), level, groups, whole)

    def rises(self, level: int, groups: Ints, whole: Ints, taken: int | Ints) -> Ints:
        """Return what taking so many of its wholly free hosts adds to F of each of these groups, which have as many."""
        if not isinstance(taken, int):
            return self.of_domains(level, groups, whole - taken) - self.of_domains(level, groups, whole)
        table = self._rises.get((level, taken))
        if table is None:
            table = self._rises[level, taken] = _rise(self._table(level), taken)
        return self._found(table, level, groups, whole)

    def _table(self, level: int) -> Ints:
        table = self._domains[level]
        if table is None:
            message = f"the mix has no gangs at level {level}: a bug in Muster"
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
    """Return a row for each width of hosts, by wholly free hosts; None if no shape counts at the level."""
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
    """Return whether each host of the gang gives so much that no second part fits on it.

    Gangs with smaller parts count by their hosts alone.
    """
    return width // 2 < shape.gpus_per_node <= width


def _level_of(layout: Layout, shape: Shape) -> int | None:
    """Return the level at which the shape counts.

    None: no domain of this fleet can hold it, or only the fleet itself, where all places are one.
    """
    required = None if shape.required is None else layout.level(shape.required)
    levels = range(layout.node_level - 1, 0, -1) if required is None else (required,)
    return next((level for level in levels if layout.largest[level] >= shape.nodes), None)


def whole_hosts(state: "FleetState", tier: str) -> Tally:
    """Return the hosts with as many usable GPUs as most of their cohort have in all.

    ``state``: laid out for the tier.
    """
    layout = state.layout
    if len(layout.host_widths) == 1:
        return state.tally(tier, layout.host_widths[0])
    counts = state.tier(tier).counts
    return state.kept((whole_hosts, tier), lambda: Tally(layout, counts, layout.whole_size))


def least_raising(state: "FleetState", request: "Request", room: Tally, level: int, homes: Ints) -> Ints:
    """Return those ``homes``, groups of ``level``, where the request raises F least, narrowest level first.

    At the narrowest level room is scarcest, so a gang that takes parts of hosts goes where it breaks the fewest wholly
    free ones. Among equal homes the wider levels decide. Below a home it is not known yet which hosts are taken:
    ``scheduler.solve.host_choice`` decides there.
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
    """Return what so many hosts' parts in each of these groups add to the group's own F.

    ``fitting``: the hosts of each group that fit. ``level``: one of the levels of the state's ``fragments``.
    """
    whole = whole_hosts(state, request.tier).num_cells(level)[groups]
    taken = num_nodes if _takes_whole_hosts(state, request) else _broken(num_nodes, fitting, whole)
    return state.fragments.rises(level, groups, whole, taken)


def _num_broken(state: "FleetState", request: "Request", room: Tally, level: int, homes: Ints) -> Ints:
    """Return how many wholly free hosts of each home a gang that takes parts of hosts takes."""
    whole = whole_hosts(state, request.tier).num_cells(level)[homes]
    return _broken(request.nodes, room.num_cells(level)[homes], whole)


def _broken(num_nodes: int, fitting: Ints, whole: Ints) -> Ints:
    """Return the wholly free hosts that are taken, where hosts partly in use are taken first."""
    broken: Ints = np.minimum(np.maximum(num_nodes - fitting + whole, 0), np.minimum(whole, num_nodes))
    return broken


def _takes_whole_hosts(state: "FleetState", request: "Request") -> bool:
    """Return whether no host that fits is partly in use."""
    return state.layout.host_widths == (request.gpus_per_node,)


def _known_rises(state: "FleetState", tally: Tally, level: int, groups: Ints, taken: int | Ints) -> Ints:
    """Return the rise of F of each group; 0 for an unknown place, around which nothing is known."""
    whole = tally.num_cells(level)
    if not len(state.layout.unknown_cells[level]):
        return state.fragments.rises(level, groups, whole[groups], taken)
    is_known = groups != NOWHERE
    taken, groups = taken if isinstance(taken, int) else taken[is_known], groups[is_known]
    found = np.zeros(len(is_known), dtype=np.int64)
    found[is_known] = state.fragments.rises(level, groups, whole[groups], taken)
    return found


def _least_raising_hosts(state: "FleetState", request: "Request", room: Tally, cells: Ints) -> Ints:
    """Return the cells where F rises least.

    Hosts partly in use count by their free GPUs alone; a wholly free one also by what its domains have left.
    """
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
    """Return the cells whose domains lose least, the narrowest level first. ``within``: wider levels than it alone."""
    for level in reversed(state.fragments.levels):
        if len(cells) > 1 and (within is None or level < within):
            cells = least_of(cells, _rises_of_one(state, room, request.tier, level, cells))
    return cells


def _rises_of_one(state: "FleetState", room: Tally, tier: str, level: int, cells: Ints) -> Ints:
    """Return what taking each wholly free cell adds to F of the domain around it; 0 for one in use, or in no domain."""
    tally, layout = whole_hosts(state, tier), state.layout
    of_groups = np.zeros(layout.num_groups[level] + 1, dtype=np.int64)  # the last is of unknown place
    groups = tally.num_cells(level)[:-1].nonzero()[0]
    of_groups[groups] = state.fragments.rises(level, groups, tally.num_cells(level)[groups], 1)
    found: Ints = of_groups[layout.groups[level][cells]]
    return found if room is tally else np.where(tally.usable[cells] > 0, found, 0)
