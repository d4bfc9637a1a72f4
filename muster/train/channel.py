"""A rank's words to its supervisor, and the order to stop: JSON lines over a Unix socket that never hold up training.

Out: ``hello`` (rank, world_size, pid), ``step`` (step = how many are done, loss, step_s), ``checkpoint`` (step,
generation, status committed, verified or failed, bytes, seconds, at_unix_ms, manifest_sha256, why),
``checkpoint_rejected`` (generation, why), ``resumed`` (step, generation), ``outcome`` (exit, step, message).
In: ``stop`` (reason, deadline_unix_ms), ``checkpoint_now``.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading

MOST_WAITING_BYTES = 1 << 20
_LAST_WORDS_S = 2.0


class Channel:
    """Without a path, or when nobody listens, it says nothing and hears nothing."""

    def __init__(self, path: str | None) -> None:
        self.dropped_lines = 0
        self._lock = threading.Lock()
        self._waiting = b""
        self._heard = b""
        self._socket: socket.socket | None = None
        if path is not None:
            self._socket = _connected(path)

    def say(self, kind: str, **fields: object) -> None:
        """Sent at once or kept for later; dropped and counted when too much waits."""
        line = json.dumps({"type": kind, **fields}).encode() + b"\n"
        with self._lock:
            if self._socket is None or len(self._waiting) + len(line) > MOST_WAITING_BYTES:
                self.dropped_lines += 1
                return
            self._waiting += line
            self._flush()

    def hear(self) -> list[dict[str, object]]:
        """What has come since the last call."""
        with self._lock:
            if self._socket is None:
                return []
            self._flush()
            try:
                while content := self._socket.recv(4096):
                    self._heard += content
            except OSError:  # nothing more now, or nobody there any more
                pass
            *lines, self._heard = self._heard.split(b"\n")
        return [message for line in lines if (message := _message(line)) is not None]

    def close(self) -> None:
        """Last words get a moment, since nothing is held up by them any more."""
        with self._lock:
            if self._socket is None:
                return
            with contextlib.suppress(OSError):
                self._socket.settimeout(_LAST_WORDS_S)
                self._socket.sendall(self._waiting)
            self._socket.close()
            self._socket = None

    def _flush(self) -> None:
        if self._socket is None:
            return
        try:
            while self._waiting:
                self._waiting = self._waiting[self._socket.send(self._waiting) :]
        except BlockingIOError:
            return
        except OSError:
            self._socket.close()
            self._socket = None


def _connected(path: str) -> socket.socket | None:
    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.connect(path)
    except OSError:
        channel.close()
        return None
    channel.setblocking(False)
    return channel


def _message(line: bytes) -> dict[str, object] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
