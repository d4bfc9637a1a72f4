"""A job's logs on its page: their end at once, later pieces as server-sent events, the whole as a file."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from api.dependencies import dependencies_of
from api.log_news import LogNews
from api.reading import After, reading, require_id
from api.streams import COMMENT, LastEventId, Pulse, frame, position_in, sse
from console.session import Viewer, sees
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.jobs import jobs
from control.jobs.job_logs import (
    LogChunkRecord,
    LogFilter,
    LogMark,
    LogStream,
    chunks_after,
    chunks_of,
    end_of,
    streams_of,
)
from control.jobs.log_search import LogLine, Place, search
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import AttemptId, JobId, NodeId
from muster.domain.job.log_search import Sought
from muster.domain.principals import Permission, Principal

router = APIRouter()
LAST_BYTES: Final = 48 << 10
LINES_SHOWN: Final = 200
STREAMS_LISTED: Final = 256
"""Streams that the page offers; of a wider job another rank's is linked from its debug page."""
STRETCHES: Final = 4
"""Number of stretches of a log that one page searches, each some MiB."""
_CHOICE: Final = re.compile(r"(att_[0-9a-z]{26})?/(node_[0-9a-z]{26})?/(launcher|[0-9]{1,7})?")
_PLACE: Final = re.compile(r"(att_[0-9a-z]{26})/(node_[0-9a-z]{26})/(launcher|[0-9]{1,7})/([0-9]{1,18})/([0-9]{1,18})")
_ESCAPES: Final = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-_])")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
LogReader = Annotated[Viewer, sees(Permission.LOG_READ)]
Chosen = Annotated[str, Query(max_length=80)]


def filter_in(text: str) -> LogFilter:
    """Return the filter of ``attempt/node/stream``, each part or all of it empty.

    Raises:
        ValidationFailedError: anything else.
    """
    found = _CHOICE.fullmatch(text or "//")
    if found is None:
        raise ValidationFailedError.at("/log", "unknown", "is attempt/node/stream: two ids, then a rank or launcher")
    return LogFilter(*found.groups())


def value_of(attempt_id: str = "", node_id: str = "", stream: str = "") -> str:
    return f"{attempt_id}/{node_id}/{stream}"


@dataclass(frozen=True, slots=True)
class ShownChunk:
    """One piece as a page shows it, under the name of its attempt, rank and host."""

    position: int
    source: str
    text: str


def shown_chunks(chunks: Iterable[LogChunkRecord], streams: Sequence[LogStream]) -> Iterator[ShownChunk]:
    """Yield the pieces as a page shows them. ``streams``: which name their hosts."""
    known = _by_host(streams)
    for chunk in chunks:
        yield ShownChunk(chunk.position, _source(chunk, known), _readable(chunk.content))


def _by_host(streams: Sequence[LogStream]) -> dict[tuple[AttemptId, NodeId], LogStream]:
    return {(one.attempt_id, one.node_id): one for one in streams}


def _source(printed: LogChunkRecord | LogLine, known: Mapping[tuple[AttemptId, NodeId], LogStream]) -> str:
    one = known.get((printed.attempt_id, printed.node_id))
    what = printed.stream if printed.stream == "launcher" else f"rank {printed.stream}"
    return what if one is None else f"{what} on {one.node_name}, attempt {one.number}"


def joined(pieces: Iterable[ShownChunk]) -> list[ShownChunk]:
    """Join pieces of one rank without another's between them."""
    found: list[ShownChunk] = []
    for piece in pieces:
        if found and found[-1].source == piece.source:
            found[-1] = ShownChunk(piece.position, piece.source, found[-1].text + piece.text)
        else:
            found.append(piece)
    return found


def _readable(content: bytes) -> str:
    """Return the text without characters that only a terminal understands."""
    text = _ESCAPES.sub("", content.decode("utf-8", "replace"))
    return _CONTROLS.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


@dataclass(frozen=True, slots=True)
class Search:
    """Result of a search through all of the logs. ``next_step``: where to continue, as the page's address has it."""

    pieces: Sequence[ShownChunk]
    num_lines: int
    next_step: str | None


def searched(unit: UnitOfWork, job_id: JobId, wanted: LogFilter, text: str, begin: str) -> Search:
    """Return the next lines that hold ``text`` in any case, within the limit of one answer.

    Raises:
        ValidationFailedError: ``begin`` is no place that a page has named.
    """
    sought, place = Sought(text, ignores_case=True), _place_in(begin)
    found: list[LogLine] = []
    for _ in range(STRETCHES):
        more, place = search(unit, job_id, wanted, sought, after=place, limit=LINES_SHOWN - len(found))
        found.extend(more)
        if place is None or len(found) == LINES_SHOWN:
            break
    known = _by_host(streams_of(unit, job_id, wanted))
    pieces = (ShownChunk(line.line.offset, _source(line, known), _readable(line.line.text) + "\n") for line in found)
    return Search(joined(pieces), len(found), None if place is None else "/".join(map(str, place)))


def _place_in(text: str) -> Place | None:
    if not text:
        return None
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ValidationFailedError.at("/begin", "unknown", "is a place that this page has named")
    attempt, node, stream, chunk, offset = found.groups()
    return Place(attempt, node, stream, int(chunk), int(offset))


@router.get("/jobs/{job_id}/logs/follow")
async def follow(
    request: Request,
    viewer: LogReader,
    job_id: str,
    log: Chosen = "",
    after: After = 0,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream output after position ``after``, until the job has ended and all is delivered."""
    found_id = JobId(require_id("job", job_id))
    after = position_in(last_event_id, after)
    follower = _Follower(dependencies_of(request).units, viewer.principal, found_id, filter_in(log))
    await run_in_threadpool(follower.page, after)  # a refusal must come before the stream begins
    return sse(request, viewer.principal, follower.frames(after, request.app.state.log_news))


class _Follower:
    def __init__(self, units: UnitOfWorkFactory, principal: Principal, job_id: JobId, wanted: LogFilter) -> None:
        self._units = units
        self._principal = principal
        self._job_id = job_id
        self._wanted = wanted

    def page(self, after: int) -> tuple[list[ShownChunk], bool]:
        """Return new pieces, and whether no more will come.

        The end is read first, so that everything before it is read.
        """

        def read(unit: UnitOfWork) -> tuple[list[ShownChunk], bool]:
            over = end_of(unit, self._job_id) is not None
            found = chunks_after(unit, self._job_id, self._wanted, after=after)
            streams = streams_of(unit, self._job_id, self._wanted) if found else ()
            return list(shown_chunks(found, streams)), over and not found

        return reading(self._units, self._principal, jobs.READ, read)

    async def frames(self, after: int, news: LogNews) -> AsyncIterator[bytes]:
        pulse = Pulse(asyncio.get_running_loop().time)
        seen: LogMark | None = None
        while True:
            found, over = await run_in_threadpool(self.page, after)
            for one in found:
                after = one.position
                yield frame({"who": one.source, "text": one.text}, event="log", position=after)
            if over:
                yield frame({}, event="end")
                return
            if found:
                pulse.spoke()
                continue
            if pulse.is_due():
                yield COMMENT
            seen = await news.wait(self._job_id, seen)


@router.get("/jobs/{job_id}/logs.txt")
def whole(request: Request, viewer: LogReader, job_id: str, log: Chosen = "") -> Response:
    """Return every byte as printed, stream by stream; if there are several, each begins with a line that names it."""
    found_id, wanted = JobId(require_id("job", job_id)), filter_in(log)
    units, principal = dependencies_of(request).units, viewer.principal
    streams = reading(units, principal, jobs.READ, lambda unit: streams_of(unit, found_id, wanted))
    headers = {"Content-Disposition": f'attachment; filename="{found_id}.log.txt"', "Cache-Control": "no-store"}
    pieces = _pieces(units, principal, found_id, streams)
    return StreamingResponse(pieces, media_type="text/plain; charset=utf-8", headers=headers)


def _pieces(
    units: UnitOfWorkFactory, principal: Principal, job_id: JobId, streams: Sequence[LogStream]
) -> Iterator[bytes]:
    for one in streams:
        if len(streams) > 1:
            what = one.stream if one.stream == "launcher" else f"rank {one.stream}"
            yield f"==> attempt {one.number}, {what} on {one.node_name} <==\n".encode()
        after, ends_line = -1, True
        while True:
            found = reading(
                units,
                principal,
                jobs.READ,
                lambda unit, one=one, after=after: chunks_of(unit, job_id, one, after=after),  # type: ignore[misc]  # used at once
            )
            for chunk in found:
                after, ends_line = chunk.byte_offset, chunk.content.endswith(b"\n")
                yield chunk.content
            if not found:
                break
        if not ends_line:
            yield b"\n"
