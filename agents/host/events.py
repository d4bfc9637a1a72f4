"""The host and its ports as events: states as they change, counters as they rise."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog

from agents.events.naming import Naming
from agents.events.rises import RiseTeller
from agents.events.states import Coarseness, StateTeller
from agents.host.clock import ClockSteps, ServerClock
from agents.host.condition import DEADLINE_S, disks, drivers, pressure
from agents.host.inventory import PortInventory
from agents.host.mounts import read_only
from agents.host.network import network_counters
from agents.host.ports import ACTIVE, DOWN, Port, is_rdma, ports_under
from agents.host.versions import host_words
from agents.probes.deadline import Callers, NoAnswerError
from agents.probes.interface import ProbeEvent
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.evidence.state_readings import HOST_READING_TEXTS, words_text

_log = structlog.get_logger(__name__)
_TENTH: Final = 0.1
HOST_COARSENESS: Final[Mapping[str, Coarseness]] = {
    "disk_free_bytes": Coarseness(_TENTH, floor=float(1 << 30)),
    "disk_free_fraction": Coarseness(_TENTH, floor=0.01),
    "inodes_free_fraction": Coarseness(_TENTH, floor=0.01),
    "clock_offset_s": Coarseness(_TENTH, floor=1.0),
    "cpu_pressure": Coarseness(_TENTH, floor=1.0),
    "memory_pressure": Coarseness(_TENTH, floor=0.5),
    "io_pressure": Coarseness(_TENTH, floor=0.5),
}
"""A tenth of the reported value; near zero a tenth of the floor, since a share of nothing is always much."""
NOTHING_DIFFERS: Final[Mapping[str, float]] = MappingProxyType({})
_SEGMENTS: Final = "tcp_segments"
"""A counter that always rises: reported with the others, but no reason for a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlaces:
    """Places on the host. ``root``: where its /proc and /sys are. ``folders``: written to by the agent and jobs.

    ``ports_file``: the file of RDMA ports that the host has shown; None: they are not reported. ``enrolled_ports``: the
    host's ports at its enrolment; without them none is missed.
    """

    root: Path = Path("/")
    folders: tuple[Path, ...] = ()
    ports_file: Path | None = None
    enrolled_ports: frozenset[str] = frozenset()


@dataclass(slots=True)
class _OfPort:
    state: StateTeller = field(default_factory=StateTeller)
    rises: RiseTeller = field(default_factory=RiseTeller)
    down_since_s: float | None = None
    was_down_s: float | None = None
    newest: Port | None = None
    was_active: bool = False


class HostTeller:
    """Events of the host. ``places`` None: no file of the host is read, as where GPUs are simulated.

    ``gpus`` gives its GPUs' counts.
    """

    def __init__(
        self,
        naming: Naming,
        places: HostPlaces | None,
        *,
        server_clock: ServerClock | None = None,
        gpus: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._naming = naming
        self._places = places
        self._server_clock = server_clock
        self._gpus = gpus
        self._state = StateTeller(HOST_COARSENESS)
        self._rises = RiseTeller()
        self._steps = ClockSteps()
        self._ports: defaultdict[str, _OfPort] = defaultdict(_OfPort)
        self._callers = Callers()
        self._silent = set[str]()
        file = None if places is None else places.ports_file
        self._inventory = None if file is None else PortInventory(file)
        self._here: frozenset[str] | None = None
        self._enrolled = frozenset[str]() if places is None else places.enrolled_ports
        self._missing = frozenset[str]()

    @property
    def has_places(self) -> bool:
        """Return whether anything of the host is read."""
        return self._places is not None

    def check_ports(self, at_ms: int, now_s: float) -> tuple[ProbeEvent, ...]:
        """Return the states of ports, which may change and change back within a window.

        ``now_s`` is the boot's clock.
        """
        if self._places is None:
            return ()
        self._steps.check(at_ms, round(now_s * 1000))
        return tuple(self._port_states(at_ms, now_s))

    def report(
        self, at_ms: int, now_s: float, differing: Mapping[str, float] = NOTHING_DIFFERS
    ) -> tuple[ProbeEvent, ...]:
        """Return events of the host's state and of rises. ``differing``: of its GPUs, reported with its state."""
        state = {**self.state(), **differing}
        return (
            *self._host_state(state, at_ms, now_s),
            *self._host_rates(at_ms, now_s),
            *self._port_rates(at_ms, now_s),
        )

    def state(self) -> dict[str, float]:
        """Return the state by the names of ``HOST_STATE``, without unknown values."""
        found = dict(self._gpus())
        if self._places is None:
            return found
        root = self._places.root
        found |= disks(self._places.folders, self._callers)
        found |= read_only(self._places.folders, root / "proc")
        found |= pressure(root / "proc")
        found |= drivers(root / "sys", root / "proc")
        offset_s = None if self._server_clock is None else self._server_clock.offset_s()
        if offset_s is not None:
            found["clock_offset_s"] = offset_s
        if self._inventory is not None and self._inventory.rate_gbps and self._here is not None:
            expected = self._inventory.rate_gbps.keys() - self._missing  # which are reported by name
            found |= {"expected_ports": float(len(expected)), "found_ports": float(len(expected & self._here))}
        return found

    def words(self) -> dict[str, str]:
        """Return texts by the names of ``HOST_READING_TEXTS``, without unknown ones."""
        return {} if self._places is None else host_words(self._places.root, self._callers)

    def _host_state(self, state: dict[str, float], at_ms: int, now_s: float) -> Iterator[ProbeEvent]:
        words = self.words()
        if self._state.is_due(state, now_s, words):
            text = words_text(words, HOST_READING_TEXTS)
            yield self._naming.event(EventKind.HOST_STATE, Source.HOST, at_ms, state, text=text, subject="host")

    def _host_rates(self, at_ms: int, now_s: float) -> Iterator[ProbeEvent]:
        if self._places is None:
            return
        counters = network_counters(self._places.root / "proc")
        rise = self._rises.rise({**counters, "clock_steps": self._steps.count}, now_s)
        if rise is not None and rise.by.keys() - {_SEGMENTS}:
            values = {"window_s": rise.window_s, **rise.by}
            yield self._naming.event(EventKind.HOST_RATES, Source.HOST, at_ms, values)

    def _port_states(self, at_ms: int, now_s: float) -> Iterator[ProbeEvent]:
        found = self._found_ports()
        self._note_inventory(found)
        self._note_missing(found)
        missing = (Port(name, Path()) for name in sorted(self._missing))
        ports = (*found, *self._vanished(found), *missing)
        self._note_active(ports)
        for port in ports:
            known = self._ports[port.name]
            _note_down(known, port, now_s)
            state = self._state_of(port, known) if port.state or port.name in self._missing else {}
            if known.state.is_due(state, now_s):
                beside = {} if known.was_down_s is None else {"was_down_s": known.was_down_s}
                values = {**state, **beside}
                yield self._naming.event(EventKind.PORT_STATE, Source.HOST, at_ms, values, text=port.name)
                known.was_down_s = None
            if port.name not in self._missing:
                known.newest = port

    def _state_of(self, port: Port, known: _OfPort) -> dict[str, float]:
        best = None if self._inventory is None else self._inventory.rate_gbps.get(port.name)
        beside = {} if not best else {"best_rate_gbps": best}
        if port.name in self._enrolled:
            beside["is_missing"] = float(port.name in self._missing)
        return {**port.state, "was_active": float(known.was_active), **beside}

    def _note_inventory(self, found: list[Port]) -> None:
        """Note the ports found. An unreadable sysfs shows no port, and is no statement about any."""
        if self._inventory is None or not found:
            return
        self._inventory.saw(found)
        self._here = frozenset(port.name for port in found)

    def _note_missing(self, found: list[Port]) -> None:
        """Find the missing ports of the enrolment.

        A port of a silent card is there; one with a new name may be an old one.
        """
        if not found:
            return
        here = {port.name for port in found if is_rdma(port.name)}
        missed = [name for name in sorted(self._enrolled - here) if name.partition("/")[0] not in self._silent]
        self._missing = frozenset(missed[len(here - self._enrolled) :])

    def _note_active(self, ports: Iterable[Port]) -> None:
        """Note whether ports were up before the agent began, by their cards' firmware.

        A card that hangs delays only itself.
        """
        unknown: dict[str, Callable[[], bool]] = {}
        for port in ports:
            known = self._ports[port.name]
            known.was_active = known.was_active or port.state.get("state") == ACTIVE
            if port.is_down and not known.was_active:
                unknown[f"was_up:{port.name}"] = port.was_up_before
        for key, was_up in self._callers.all_within(DEADLINE_S, unknown).items():
            self._ports[key.removeprefix("was_up:")].was_active = was_up is True

    def _port_rates(self, at_ms: int, now_s: float) -> Iterator[ProbeEvent]:
        """Yield rises of ports.

        A card reads its counters through its firmware, without a time limit; it delays only itself.
        """
        readers = {f"counters:{port.name}": port.counters for port in self._found_ports()}
        for key, counts in self._callers.all_within(DEADLINE_S, readers).items():
            name = key.removeprefix("counters:")
            rise = None if isinstance(counts, BaseException) else self._ports[name].rises.rise(counts, now_s)
            if rise is not None:
                values = {"window_s": rise.window_s, **rise.by}
                yield self._naming.event(EventKind.PORT_RATES, Source.HOST, at_ms, values, text=name)

    def _vanished(self, found: list[Port]) -> Iterator[Port]:
        """Yield ports that were there and no longer are, such as of a card that fell off its bus: down.

        None where sysfs itself cannot be read.
        """
        if not found or self._places is None:
            return
        names = {port.name for port in found}
        for name, known in self._ports.items():
            if name not in names and name not in self._missing and known.newest is not None:
                yield replace(known.newest, state={**known.newest.state, "state": DOWN})

    def _found_ports(self) -> list[Port]:
        """Return the ports.

        The ports of a card that does not answer in time are as they were last seen; it delays only itself.
        """
        if self._places is None:
            return []
        sys = self._places.root / "sys"
        try:
            readers = self._callers.within(DEADLINE_S, "ports", lambda: ports_under(sys))
        except (NoAnswerError, OSError):
            return []
        found: list[Port] = []
        for key, ports in self._callers.all_within(
            DEADLINE_S, {f"ports:{name}": readers[name] for name in readers}
        ).items():
            device = key.removeprefix("ports:")
            self._note_silence(device, ports if isinstance(ports, BaseException) else None)
            found += self._last_seen(device) if isinstance(ports, BaseException) else ports
        return found

    def _note_silence(self, device: str, fault: BaseException | None) -> None:
        """Log a card's silence once until it changes: reports about its ports are old meanwhile."""
        if fault is not None and device not in self._silent:
            self._silent.add(device)
            _log.warning("ports_do_not_answer", device=device, fault=str(fault) or type(fault).__name__)
        elif fault is None and device in self._silent:
            self._silent.remove(device)
            _log.info("ports_answer_again", device=device)

    def _last_seen(self, device: str) -> list[Port]:
        names = (name for name in self._ports if name == device or name.startswith(f"{device}/"))
        return [port for name in names if (port := self._ports[name].newest) is not None]


def _note_down(known: _OfPort, port: Port, now_s: float) -> None:
    """Note how long the port was down, which is reported once, with the state that ended it."""
    if port.is_down:
        known.down_since_s = now_s if known.down_since_s is None else known.down_since_s
    elif "state" in port.state and known.down_since_s is not None:
        known.was_down_s, known.down_since_s = now_s - known.down_since_s, None
