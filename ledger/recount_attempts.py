"""One attempt by its events: for how long each host's part used its GPUs, and was then being cleaned."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ledger.periods import end_of
from ledger.recount_replay import Layer, Span


@dataclass(slots=True)
class Part:
    """One host's GPUs of an attempt."""

    gpus: tuple[str, ...]
    exited_ms: int | None = None
    clean_ms: int | None = None


@dataclass(slots=True)
class Course:
    """``parts``: by node. ``number``: orders attempts that were placed at one moment."""

    attempt_id: str
    placed_ms: int
    parts: Mapping[str, Part]
    number: int
    allocation_id: str = ""
    ended_ms: int | None = None
    released_ms: int | None = None

    def spans_of(self, part: Part) -> Iterator[Span]:
        """Yield a part's time: used until it exited or the attempt ended, then cleaned until it is free.

        A part without an event of its proof was clean when the allocation was released, if it was the last one.
        Otherwise it is UNKNOWN from the attempt's end until then.
        """
        order = (self.placed_ms, self.number)
        ended_ms, clean_ms = end_of(self.ended_ms), part.clean_ms
        if clean_ms is None and self.released_ms is not None:
            clean_ms = self.released_ms
            others_ms = [end_of(one.clean_ms) for one in self.parts.values() if one is not part]
            if max(others_ms, default=0) >= clean_ms:
                yield Span(min(ended_ms, clean_ms), clean_ms, Layer.UNKNOWN, self.attempt_id, order)
                clean_ms = min(ended_ms, clean_ms)
        free_ms = max(end_of(clean_ms), ended_ms)
        out_ms = min(end_of(part.exited_ms), ended_ms)
        yield Span(self.placed_ms, out_ms, Layer.USE, self.attempt_id, order)
        yield Span(max(out_ms, self.placed_ms), free_ms, Layer.CLEANING, self.attempt_id, order)
