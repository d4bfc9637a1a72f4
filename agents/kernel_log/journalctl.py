"""journalctl as a child process that follows the kernel's lines: no shell, started again after a pause that grows."""

import os
import select
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

JOURNALCTL: Final = "journalctl"
MAX_LINE_BYTES: Final = 8 << 20
"""The limit of a line of JSON: a message of 1 MB as numbers has four. A longer one is skipped and logged."""
PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
_READ_BYTES: Final = 256 << 10
_READS_A_TURN: Final = 64
_WORDS_MAX: Final = 300
_END_S: Final = 2.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """A journal: the host's own, or one in a folder or file. ``program``: journalctl's name or path here."""

    path: Path | None = None
    program: str = JOURNALCTL

    def command(self, boot_id: str, cursor: str | None) -> list[str]:
        """Return the command for the kernel's lines of this boot, selected by their own fields.

        ``-k`` ends where a journal has none of it yet, and so does ``--follow`` without ``--merge`` (systemd 252).
        """
        where: list[str] = []
        if self.path is not None:
            where = [f"--file={self.path}" if self.path.is_file() else f"--directory={self.path}"]
        after = [] if cursor is None else [f"--after-cursor={cursor}"]
        how = ["--merge", "--output=json", "--follow", "--no-tail", "--no-pager"]
        return [self.program, *how, *where, *after, "_TRANSPORT=kernel", f"_BOOT_ID={boot_id}"]


def plain_boot_id(boot_id: str) -> str:
    """Return the boot's id without the dashes that the kernel writes, as the journal has it."""
    return boot_id.replace("-", "").lower()


HOSTS_OWN: Final = JournalPlace()


class Journalctl:
    """The child process.

    ``cursor``: the line after which to begin. Raises OSError where it cannot be started at all.
    """

    def __init__(
        self, place: JournalPlace, boot_id: str, *, cursor: Callable[[], str | None], clock_s: Callable[[], float]
    ) -> None:
        self._place = place
        self._boot_id = plain_boot_id(boot_id)
        self._cursor = cursor
        self._clock_s = clock_s
        self._pieces = Lines()
        self._pause_s = PAUSE_MIN_S
        self._not_before_s = 0.0
        self._complaint = ""
        self._last_fault = ""
        self.has_reported = False
        """A line that could be read, since it was started last."""
        self.on_refused: Callable[[], None] = lambda: None
        """Called when it does not accept the cursor."""
        self._child: subprocess.Popen[bytes] | None = self._started()

    def close(self) -> None:
        """End the child; its unread lines are read again by the agent's next process."""
        child, self._child = self._child, None
        if child is not None:
            _end(child)

    def lines(self, timeout_s: float) -> Iterator[bytes]:
        """Yield the lines left from the last call, then new ones, waiting up to ``timeout_s``.

        Each line is given once, wherever the reader stops.
        """
        yield from self._pieces.left()
        child = self._running(timeout_s)
        if child is None or not self._waited(child, timeout_s):
            return
        for _ in range(_READS_A_TURN):
            if not self._read(child):
                break
            yield from self._pieces.left()

    def _started(self) -> subprocess.Popen[bytes]:
        command = self._place.command(self._boot_id, self._cursor())
        surroundings = {"LC_ALL": "C", "SYSTEMD_COLORS": "0", "PATH": os.environ.get("PATH", os.defpath)}
        pipe = subprocess.PIPE
        child = subprocess.Popen(  # noqa: S603  # a fixed program and arguments of ours, no shell
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, bufsize=0, env=surroundings
        )
        for end in (child.stdout, child.stderr):
            if end is not None:
                os.set_blocking(end.fileno(), False)
        self.has_reported, self._complaint = False, ""
        return child

    def _running(self, timeout_s: float) -> subprocess.Popen[bytes] | None:
        """Return the child, or None: it ended, and its pause is not over; the pause was waited for up to the limit."""
        if self._child is not None:
            return self._child
        rest_s = self._not_before_s - self._clock_s()
        if rest_s > 0:
            select.select([], [], [], min(rest_s, timeout_s))
            return None
        try:
            self._child = self._started()
        except OSError as error:
            self._postpone(f"cannot be started: {error.strerror}")
        return self._child

    def _read(self, child: subprocess.Popen[bytes]) -> bool:
        """Return whether there may be more at once."""
        if child.stdout is None:
            return False
        try:
            piece = os.read(child.stdout.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        if piece:
            self._pieces.add(piece)
            return True
        self._ended(child)
        return False

    def _ended(self, child: subprocess.Popen[bytes]) -> None:
        self._child = None
        self._pieces.drop_unfinished()
        words = " ".join(filter(None, (self._complaint, _end(child))))[-_WORDS_MAX:]
        if self.has_reported:
            self._pause_s = PAUSE_MIN_S
        elif child.returncode != 0 and "cursor" in words:
            self.on_refused()
        self._postpone(words or f"ended with code {child.returncode}")

    def _postpone(self, why: str) -> None:
        say = _log.debug if why == self._last_fault else _log.warning
        say("kernel_journal_ended", why=why, again_in_s=self._pause_s)
        self._last_fault = why
        self._not_before_s = self._clock_s() + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def _waited(self, child: subprocess.Popen[bytes], timeout_s: float) -> bool:
        """Return whether it has written a line, or ended. Its complaints are taken from its pipe and logged."""
        poll = select.poll()
        for pipe in (child.stdout, child.stderr):
            if pipe is not None and not pipe.closed:
                poll.register(pipe.fileno(), select.POLLIN)
        told = {descriptor for descriptor, _ in poll.poll(timeout_s * 1000)}
        if child.stderr is not None and child.stderr.fileno() in told:
            self._receive(child.stderr.fileno())
        return child.stdout is not None and child.stdout.fileno() in told

    def _receive(self, descriptor: int) -> None:
        try:
            words = " ".join(os.read(descriptor, 64 << 10).decode("utf-8", "replace").split())[:_WORDS_MAX]
        except BlockingIOError:
            return
        if words and words not in {self._complaint, self._last_fault}:
            _log.warning("kernel_journal_says", words=words)
        self._complaint = words or self._complaint


class Lines:
    """Whole lines out of pieces; one that is too long is skipped up to its end."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._num_bytes = 0
        self._is_too_long = False
        self._whole: list[bytes] = []

    def add(self, piece: bytes) -> None:
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._append(end)
            if not self._is_too_long and self._num_bytes:
                self._whole.append(b"".join(self._pieces))
            self.drop_unfinished()
        self._append(rest)

    def left(self) -> Iterator[bytes]:
        """Yield each whole line once, also where the reader stops between them."""
        while self._whole:
            yield self._whole.pop(0)

    def drop_unfinished(self) -> None:
        self._pieces, self._num_bytes, self._is_too_long = [], 0, False

    def _append(self, piece: bytes) -> None:
        self._num_bytes += len(piece)
        if self._num_bytes > MAX_LINE_BYTES:
            if not self._is_too_long:
                _log.warning("kernel_journal_line_too_long", max_bytes=MAX_LINE_BYTES)
            self._pieces, self._is_too_long = [], True
        elif piece:
            self._pieces.append(piece)


def _end(child: subprocess.Popen[bytes]) -> str:
    """End the child and return its last error output."""
    child.kill()
    try:
        _, said = child.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired:  # a child of its own holds the pipes
        return ""
    return " ".join((said or b"").decode("utf-8", "replace").split())[-_WORDS_MAX:]
