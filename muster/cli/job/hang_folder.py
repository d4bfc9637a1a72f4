"""A folder with what was kept of a hang: host reports, flight-recorder dumps, logs. It becomes host reports.

Each file is known by its name and its first bytes::

    host-node-a.json                      a host report of Muster
    nccl_trace_rank_3, fr-3.json          a dump of the flight recorder, JSON or pickle, of the rank that ends its name
    rank-3.log, attempt_0/3/stderr.log    the output of a rank
    dmesg-node-a.log, kern.log            the log of a host's kernel
    train.log                             the output of several ranks

A file that cannot be used is named in the notes, with the reason, unless Muster itself writes it next to an attempt.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from watch.fields import FieldError
from watch.forensics.documents import from_document
from watch.forensics.flight_recorder import MAX_BYTES, Dump, DumpError, read_dump, with_dump
from watch.lines.findings import LineFinding
from watch.lines.reader import LineReader
from watch.lines.transports import transport_words
from watch.phases import Phase
from watch.reports import HostReport, RankReport

MAX_FILES: Final = 4096
MAX_DEPTH: Final = 4
MAX_LOG_BYTES: Final = 1 << 30
MAX_RANK: Final = 1 << 20
_CHUNK: Final = 1 << 20
_RANK: Final = re.compile(r"rank[-_.]?(\d{1,7})|(?:^|[-_.])(\d{1,7})(?=\.\w{1,8}$|$)", re.IGNORECASE)
_KERNEL: Final = re.compile(r"dmesg|kern|syslog", re.IGNORECASE)
_KERNEL_NODE: Final = re.compile(
    r"(?:dmesg|kernel|kern|syslog)[-_.](?P<node>[\w.-]{1,64}?)(?:\.(?:log|txt))?$", re.IGNORECASE
)
_LOG_ENDS: Final = frozenset({".log", ".txt", ".out", ".err"})
_PICKLE_ENDS: Final = frozenset({".pickle", ".pkl"})
OWN_RECORDS: Final = frozenset(
    {"order.json", "supervisor.json", "supervisor.lock", "user.json", "lease.json", "stop.json", "stopping.json"}
    | {"ready.json", "go.json", "meet.json", "met.json", "pins.json", "exit.json", "clean.json", "events.jsonl"}
    | {"train.jsonl", "logs_sent.json", "collect.json", "stalled.json", "durations.json", "learnt.json"}
    | {"findings.jsonl"}
)
"""Files of an attempt's folder that say nothing about a hang."""
_OWN_BY_RANK: Final = re.compile(
    r"(?:^|/)(?:(?:ranks|logs)/(?:\d{1,7}|launcher)(?:\.exit)?|sensors/[\w-]{1,32})\.json$"
)
_TRACEBACK: Final = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class Bundle:
    """The reports that a folder holds. ``notes``: files that could not be used, each with the reason.

    ``num_used``: the files from which something was read. ``transports``: what NCCL stated to use, one line a choice.
    """

    reports: tuple[HostReport, ...]
    notes: tuple[str, ...] = ()
    num_used: int = 0
    transports: tuple[str, ...] = ()


@dataclass(slots=True)
class _Contents:
    """The contents of a folder, before they are joined by rank. ``kernel``: lines by host."""

    reports: list[HostReport] = field(default_factory=list)
    dumps: dict[int, Dump] = field(default_factory=dict)
    lines: dict[int, list[str]] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    loose: list[str] = field(default_factory=list)
    kernel: dict[str, list[str]] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)
    transports: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    num_used: int = 0

    def note(self, name: str, words: str) -> None:
        """Note what is wrong with a file, unless it is one of Muster's own records."""
        if not _is_own_record(name):
            self.notes.append(f"{name}: {words}")


def read_bundle(folder: Path) -> Bundle:
    """Return the host reports that the files of ``folder`` make together."""
    contents = _Contents()
    for number, path in enumerate(_files(folder)):
        if number == MAX_FILES:
            contents.notes.append(f"only the first {MAX_FILES} files were read")
            break
        name = str(path.relative_to(folder))
        try:
            if _read(contents, path, name):
                contents.num_used += 1
        except (OSError, FieldError, DumpError) as error:
            contents.note(name, f"not used: {error}")
    transports = tuple(f"{words} in {count} logs" for words, count in sorted(contents.transports.items()))
    return Bundle(_joined(contents), tuple(contents.notes), contents.num_used, transports)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the regular files, sorted; links are not followed, since a tenant may have written the folder.

    Hidden files are left out: a process that is killed leaves the file that it had not renamed yet.
    """
    for root, folders, names in os.walk(folder):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = sorted(folders) if depth < MAX_DEPTH else []
        for name in sorted(names):
            path = Path(root, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def _read(contents: _Contents, path: Path, name: str) -> bool:
    """Read one file into ``contents``. Returns whether it is of a known kind."""
    with path.open("rb") as file:
        start = file.read(64).lstrip()
    is_log = path.suffix in _LOG_ENDS or path.name.startswith(("stdout", "stderr"))
    if path.suffix == ".json" or (not is_log and start.startswith(b"{")):
        return _read_json(contents, path, name)
    if path.suffix in _PICKLE_ENDS or (not is_log and start.startswith(b"\x80")):
        _take_dump(contents, _whole(path), name)
        return True
    if is_log or not path.suffix:
        _read_log(contents, path)
        return True
    contents.note(name, "not used: its kind is unknown")
    return False


def _whole(path: Path) -> bytes:
    """Return the content of a dump or report. Raises DumpError if it is too large to be one."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise DumpError(f"it has {size:,} bytes, and {MAX_BYTES:,} are accepted")
    return path.read_bytes()


def _read_json(contents: _Contents, path: Path, name: str) -> bool:
    content = _whole(path)
    if not path.name.startswith("host-"):
        _take_dump(contents, content, name)
        return True
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FieldError(f"it is no whole JSON document: {error}") from error
    contents.reports.append(from_document(document))
    return True


def _take_dump(contents: _Contents, content: bytes, name: str) -> None:
    rank = rank_of_name(name)
    if rank is None:
        raise DumpError("its name does not end with the rank, such as `fr-3.json` or `nccl_trace_rank_3`")
    if not _is_own_record(name):
        contents.known.add(rank)
    dump = read_dump(content)
    contents.dumps[rank] = dump
    contents.notes += (f"{name}: {note}" for note in dump.notes)


def _is_own_record(name: str) -> bool:
    return Path(name).name in OWN_RECORDS or _OWN_BY_RANK.search(name) is not None


def rank_of_name(name: str) -> int | None:
    """Return the rank that a file's name states, else the one that the name of its folder is."""
    path = Path(name)
    found = _RANK.search(path.name)
    if found is not None:
        return _rank(found[1] or found[2])
    folder = path.parent.name
    return _rank(folder) if folder.isascii() and folder.isdigit() else None


def _rank(text: str) -> int | None:
    return int(text) if len(text) <= 7 and int(text) < MAX_RANK else None


def _read_log(contents: _Contents, path: Path) -> None:
    """Keep the lines of a log that are about a fault: the rest of it says nothing to the judge."""
    is_kernel = bool(_KERNEL.search(path.name))
    rank = None if is_kernel else rank_of_name(f"{path.parent.name}/{path.name}")
    if rank is not None:
        contents.known.add(rank)
    reader = LineReader(rank=rank, is_kernel=is_kernel)
    node = _KERNEL_NODE.search(path.name)
    for finding in _findings(reader, path):
        if is_kernel:
            contents.kernel.setdefault(node["node"] if node else "", []).append(finding.text)
        else:
            _keep(contents, finding)
    if reader.transport is not None:
        contents.transports[transport_words(reader.transport)] += 1


def _findings(reader: LineReader, path: Path) -> Iterator[LineFinding]:
    num_left = MAX_LOG_BYTES
    with path.open("rb") as file:
        while num_left > 0 and (content := file.read(min(_CHUNK, num_left))):
            num_left -= len(content)
            yield from reader.feed(content)
    yield from reader.close()


def _keep(contents: _Contents, finding: LineFinding) -> None:
    lines = contents.loose if finding.rank is None else contents.lines.setdefault(finding.rank, [])
    if finding.name == "program.exception":
        lines.append(_TRACEBACK)
    lines.append(finding.text)
    if finding.rank is not None and finding.host:
        contents.hosts.setdefault(finding.rank, finding.host)


def _joined(contents: _Contents) -> tuple[HostReport, ...]:
    """Return the reports with dumps and lines at their ranks; ranks that no report has get one by their host."""
    reported = {rank.rank for report in contents.reports for rank in report.ranks}
    reports = [
        replace(
            report,
            ranks=tuple(_with_files(rank, contents) for rank in report.ranks),
            lines=(*report.lines, *contents.kernel.pop(report.node, ())),
        )
        for report in contents.reports
    ]
    others: dict[str, list[RankReport]] = {}
    for rank in sorted((contents.known | contents.lines.keys()) - reported):
        host = contents.hosts.get(rank, "")
        others.setdefault(host, []).append(_with_files(RankReport(rank, Phase.STEP), contents))
    for node in sorted(others.keys() | contents.kernel.keys() | ({""} if contents.loose else set())):
        loose = contents.loose if not node else ()
        lines = (*contents.kernel.get(node, ()), *loose)
        reports.append(HostReport(node, 0, tuple(others.get(node, ())), lines))
    return tuple(reports)


def _with_files(rank: RankReport, contents: _Contents) -> RankReport:
    dump = contents.dumps.get(rank.rank)
    with_lines = replace(rank, lines=(*rank.lines, *contents.lines.get(rank.rank, ())))
    return with_lines if dump is None else with_dump(with_lines, dump)
