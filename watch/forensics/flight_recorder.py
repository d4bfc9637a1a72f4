"""Dumps of PyTorch's flight recorder: JSON of ``_dump_fr_trace_json``, and its pickle of plain values.

A pickle is a program, and a tenant wrote it. So it is read by an unpickler that knows no class and no function: a dump
of torch needs neither. A dump that was cut off is refused: its newest entries are last, and without them the rank would
seem to lag.

A short pickle may name one long list for each of its entries. So what is taken of an entry is bounded.
"""

import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from watch.reports import (
    COMPLETED,
    FLIGHT_RECORDER,
    NCCL,
    SCHEDULED,
    STARTED,
    Collective,
    Frame,
    RankReport,
    StackSource,
)

MAX_ENTRIES: Final = 2048
"""Newest entries of a dump that are kept."""
MAX_BYTES: Final = 64 << 20
_MAJOR: Final = "2"
_MAX_NAME: Final = 200
_MAX_SIZES: Final = 16
_MAX_MEMBERS: Final = 1 << 16
_MAX_GROUPS: Final = 256
_PICKLE: Final = b"\x80"
_MAX_INT: Final = (1 << 63) - 1
_STATES: Final = frozenset({SCHEDULED, STARTED, COMPLETED})


class DumpError(ValueError):
    """A dump that cannot be used: the text says why and what is accepted."""


@dataclass(frozen=True, slots=True)
class Dump:
    """A rank's dump. ``collectives``: in the order in which the rank entered them. ``stack``: of the newest call.

    ``notes``: what in the dump was not as expected, and was left out.
    """

    collectives: tuple[Collective, ...]
    stack: tuple[Frame, ...] = ()
    notes: tuple[str, ...] = ()


def read_dump(content: bytes) -> Dump:
    """Return the collectives of a dump, JSON or pickle."""
    if len(content) > MAX_BYTES:
        raise DumpError(f"it has {len(content)} bytes; at most {MAX_BYTES} are read")
    document = _unpickled(content) if content.startswith(_PICKLE) else _parsed(content)
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise DumpError("it has no list `entries`, which every dump of the flight recorder has")
    return _dump(document)


def _parsed(content: bytes) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        if b'"entries"' in content:
            raise DumpError(f"it is cut off or damaged ({error}); its newest entries would be missing") from error
        raise DumpError(f"it is no JSON ({error})") from error


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler of numbers, texts, lists, tuples and dicts: it loads no class and calls no function."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a dump holds plain values alone")


def _unpickled(content: bytes) -> object:
    try:
        return _PlainUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle raises whatever its opcodes lead to
        raise DumpError(f"its pickle is cut off, damaged, or no plain dump ({error})") from error


def _dump(document: Mapping[str, Any]) -> Dump:
    notes: list[str] = []
    version = str(document.get("version", "unknown"))
    if version.split(".", maxsplit=1)[0] != _MAJOR:
        notes.append(f"its version is {version}, and {_MAJOR}.x is known: known fields are read")
    groups = _members(document.get("pg_config"))
    raw = document["entries"][-MAX_ENTRIES:]
    read = [(entry, _collective(entry, groups)) for entry in raw]
    if num_odd := sum(1 for _, each in read if each is None):
        notes.append(f"{num_odd} of {len(raw)} entries are not readable and were left out")
    whole = [(entry, each) for entry, each in read if each is not None]
    whole.sort(key=lambda item: _count(item[0].get("record_id")) or 0)
    stack = _stack(whole[-1][0]) if whole and whole[-1][1].state != COMPLETED else ()
    return Dump(tuple(each for _, each in whole), stack, tuple(notes))


def with_dump(rank: RankReport, dump: Dump) -> RankReport:
    """Return the report with the dump's collectives in place of what it has from the same recorder.

    The stack of the newest call stands in where there is none.
    """
    sources = {each.source for each in dump.collectives} | ({FLIGHT_RECORDER} if not dump.collectives else set())
    own = tuple(each for each in rank.collectives if each.source not in sources)
    stack, source = rank.stack, rank.stack_source
    if not stack and dump.stack:
        stack, source = dump.stack, StackSource.FLIGHT_RECORDER
    return replace(rank, collectives=(*own, *dump.collectives), stack=stack, stack_source=source)


def _members(config: object) -> dict[str, tuple[int, ...]]:
    """Return the members of each group by its name."""
    groups = list(config.items())[:_MAX_GROUPS] if isinstance(config, dict) else []
    return {name: _ranks(about) for name, about in groups if isinstance(name, str)}


def _collective(entry: object, groups: Mapping[str, tuple[int, ...]]) -> Collective | None:
    """Return one entry; None if it lacks the fields that every version has."""
    if not isinstance(entry, dict):
        return None
    is_p2p = entry.get("is_p2p") is True
    sequence = _count(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id"))
    name = entry.get("profiling_name")
    if sequence is None or not isinstance(name, str):
        return None
    backend, _, operation = name.partition(":")
    group, description = _group(entry)
    return Collective(
        group=group,
        sequence=sequence,
        operation=(operation or backend)[:_MAX_NAME],
        sizes=_sizes(entry.get("input_sizes")),
        dtype=_first_text(entry.get("input_dtypes")),
        state=_state(entry, backend),
        ranks=groups.get(group, ()),
        source=NCCL if operation and backend == NCCL else FLIGHT_RECORDER,
        is_p2p=is_p2p,
        description="" if description in {"default_pg", "undefined"} else description,
    )


def _state(entry: Mapping[str, Any], backend: str) -> str:
    """Return an entry's state. gloo leaves it ``scheduled`` and sets ``retired`` when the work is done."""
    if backend == "gloo" and entry.get("retired") is True:
        return COMPLETED
    state = entry.get("state")
    return state if isinstance(state, str) and state in _STATES else ""


def _group(entry: Mapping[str, Any]) -> tuple[str, str]:
    names = entry.get("process_group")
    if isinstance(names, list | tuple) and len(names) == 2 and all(isinstance(each, str) for each in names):
        return names[0][:_MAX_NAME], names[1][:_MAX_NAME]
    return str(_count(entry.get("pg_id")) or 0), ""


def _ranks(config: object) -> tuple[int, ...]:
    """Return the members of a group, which the recorder writes as text: ``[0, 1]``."""
    ranks = config.get("ranks") if isinstance(config, dict) else None
    if isinstance(ranks, str):
        try:
            ranks = json.loads(ranks)
        except (ValueError, RecursionError):
            return ()
    if not isinstance(ranks, list) or len(ranks) > _MAX_MEMBERS or any(_count(each) is None for each in ranks):
        return ()
    return tuple(ranks)


def _sizes(value: object) -> tuple[int, ...]:
    first = value[0] if isinstance(value, list) and value else None
    if not isinstance(first, list) or len(first) > _MAX_SIZES or any(_count(each) is None for each in first):
        return ()
    return tuple(first)


def _first_text(value: object) -> str:
    first = value[0] if isinstance(value, list) and value else value
    return first[:_MAX_NAME] if isinstance(first, str) else ""


def _stack(entry: Mapping[str, Any]) -> tuple[Frame, ...]:
    frames = entry.get("frames")
    if not isinstance(frames, list):
        return ()
    return tuple(
        Frame(
            str(each.get("name", ""))[:_MAX_NAME], str(each.get("filename", ""))[:4096], _count(each.get("line")) or 0
        )
        for each in frames[:256]
        if isinstance(each, dict)
    )


def _count(value: object) -> int | None:
    """Return a whole number from 0; the recorder writes some numbers as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INT else None
