"""The option ``--watch`` shows an answer again after an event, at the latest after an interval, until Ctrl-C."""

import shutil
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from muster.cli.framework.durations import seconds_of
from muster.cli.framework.exits import CommandError, Exit, exit_of
from muster.cli.framework.output import Answer, Format, json_of, print_line, yaml_of
from muster.cli.framework.tables import width
from muster.cli.framework.terminal import takes_escapes

LEAST_S: Final = 0.2
GATHER_S: Final = 0.2
"""Wait after an event for others that follow it, so that one query covers them."""
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def watch(read: Callable[[], Answer], shape: Format, *, every: str) -> int:
    """Show the answer until Ctrl-C. The first query's faults are raised; later ones are shown, and the watch
    continues.
    """
    interval_s = seconds_of(every, "--every") or 0.0
    if interval_s < LEAST_S:
        raise CommandError(f"--every {every} is too often", "Write 0.2s or more.", Exit.USAGE)
    screen = _display_of(shape)
    answer = read()
    woken = _Woken()
    code = answer.code
    try:
        with screen.shown():
            while True:
                screen.draw(answer, shape, "")
                woken.wait(interval_s)
                answer = _read_again(read, answer, screen, shape)
                code = answer.code
    except KeyboardInterrupt:
        for line in screen.left():
            print_line(line)
    return code


def _display_of(shape: Format) -> "_Display":
    if shape.as_json or shape.as_yaml:
        return _Objects()
    return _Screen() if takes_escapes(sys.stdout) else _Pages()


def _read_again(read: Callable[[], Answer], last: Answer, screen: "_Display", shape: Format) -> Answer:
    try:
        return read()
    except Exception as fault:
        code, words, _ = exit_of(fault)
        if code not in {Exit.UNREACHABLE, Exit.SERVER_FAULT}:
            raise
        screen.draw(last, shape, f"what is shown is old: {words}")
        return last


class _Woken:
    """Wait for events, by their stream if this key may follow it; else by time alone."""

    def __init__(self) -> None:
        self._event = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def wait(self, seconds: float) -> None:
        if self._event.wait(seconds):
            threading.Event().wait(GATHER_S)
            self._event.clear()

    def _follow(self) -> None:
        from muster.cli.framework.profile import open_client
        from muster.client.transport import Problem, UnreachableError

        try:
            with open_client(as_operator=True) as client:
                for _ in client.follow_events():
                    self._event.set()
        except (CommandError, Problem, UnreachableError):
            return  # the interval does it


class _Display(ABC):
    @contextmanager
    def shown(self) -> Iterator[None]:
        yield

    @abstractmethod
    def draw(self, answer: Answer, shape: Format, fault: str) -> None:
        """Show the newest answer, and its fault if there is one."""

    def left(self) -> Sequence[str]:
        """Return the lines that stay when Ctrl-C ends the watch."""
        return ()


class _Screen(_Display):
    """Display on a terminal, drawn over; its last picture stays."""

    def __init__(self) -> None:
        self._last: list[str] = []

    @contextmanager
    def shown(self) -> Iterator[None]:
        sys.stdout.write(_ENTER)
        try:
            yield
        finally:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()

    def draw(self, answer: Answer, shape: Format, fault: str) -> None:
        self._last = list(answer.lines(shape))
        columns, rows = width(), shutil.get_terminal_size().lines
        room = max(1, rows - 2)
        lines = self._last if len(self._last) <= room else self._last[: room - 1]
        head = f"{datetime.now(UTC):%H:%M:%S} UTC · Ctrl-C ends · {fault}".rstrip(" ·")
        hidden = len(self._last) - len(lines)
        more = [f"… and {hidden} lines more"] if hidden else []
        text = "".join(f"{line}{_REST_OF_LINE}\n" for line in (head[:columns], *lines, *more))
        sys.stdout.write(_HOME + text + _REST_OF_SCREEN)
        sys.stdout.flush()

    def left(self) -> Sequence[str]:
        return self._last


class _Pages(_Display):
    """Display on a pipe or file: each picture under its time, if it differs from the one before."""

    def __init__(self) -> None:
        self._last: list[str] = []

    def draw(self, answer: Answer, shape: Format, fault: str) -> None:
        lines = [*answer.lines(shape), *([fault] if fault else [])]
        if lines == self._last:
            return
        self._last = lines
        for line in (f"--- {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", *lines):
            print_line(line)


class _Objects(_Display):
    """Display for programs: each object when it is new or has changed, one a line (JSON) or one a document (YAML)."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()

    def draw(self, answer: Answer, shape: Format, fault: str) -> None:
        if fault:
            sys.stderr.write(f"{fault}\n")
        texts = [json_of(each) if shape.as_json else f"---\n{yaml_of(each)}" for each in answer.documents()]
        for text in texts:
            if text not in self._known:
                print_line(text)
        self._known = frozenset(texts)
