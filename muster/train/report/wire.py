"""Messages between a rank and its supervisor: JSON lines over a Unix socket, which never delay training.

``MUSTER_TRAIN_SOCKET`` names the socket; each rank has one connection. Each line is one JSON object with a ``type``.

| out | fields |
|---|---|
| ``hello`` | rank, world_size, pid; always the first line |
| ``step`` | step (how many are done), loss (null where it was no finite number), step_s, samples (seen by all ranks) |
| ``pace`` | step, num_steps and means over so many: a second for each part of ``pace``; tokens_per_s, grad_norm, memory_mib, mfu, hfu or null; samples of this rank in this attempt, samples_per_step, tokens_per_step, padding (a share) or null; epochs that are done, if they are known; skipped_steps of a gradient scaler, if there is one; own_s, wait_s, own_steps (``own_time``), place (``meshes.work_place``), and what explains a slow rank (``host_signals``); at most once a second |
| ``checkpoint`` | step, generation, status ``writing``: its files are being written; ``committed``: bytes, seconds, at_unix_ms, manifest_sha256, lineage (``lineage``, without what has no bounds), place (file system or bucket); ``verified``: all was read back equal; ``failed``: why, and faults: for each rank with a failed host or storage: rank, kind, place, is_shared (``save_faults``) |
| ``checkpoint_found`` | step, generation, bytes, at_unix_ms, manifest_sha256, lineage of one that training continues from, or skips as tainted, and that the order did not name: the attempt that committed it may have died before it reported it |
| ``checkpoint_rejected`` | generation, why: it is not as it was saved, and must not be used |
| ``checkpoint_unreadable`` | generation, why: this host could not read it now; it may be whole |
| ``checkpoint_scrubbed`` | generation: it was read again, and is as it was saved |
| ``checkpoint_pinned`` | generation, is_pinned: its mark in the store was made or removed, as ``pins`` ordered |
| ``checkpoint_expired`` | generation: removed, since newer ones are whole |
| ``checkpoint_interval`` | step, interval_s, bound (``none``, ``min``, ``max``, ``save``: see ``interval``) and what it follows from: stall_s, save_s, step_s, mtbf_s, failures_per_gpu_hour, num_gpus; again when it has changed much |
| ``resumed`` | step, generation (empty: from the start), read_bytes (of files, by this rank), rng: how the ranks came by their random numbers (``rng.policy``), restore_s: how long the restore took, until this report; absent from the start |
| ``resize`` | num_nodes: the program requests that the job continues with so many hosts |
| ``spike`` | step, what (``loss``, ``grad_norm``), value, usual (the median before), length (spikes in a row), is_shown: it is printed and an event, as the first of a row and the one from which the row is persistent |
| ``value_fault`` | step, ranks (with a value that is not finite), reason, with the first module if it is known |
| ``replica_fault`` | step, since (they agreed there), verdict ``corruption`` (of ``ranks``) or ``divergence`` (undecided), ranks, tensor, num_tensors, num_copies, is_of_buffers: only such as a program may change on one rank alone, is_of_compute: not copies differ but results of one micro-batch (``compute_check``), reason |
| ``rolled_back`` | from_step, step, generation, cause ``value_fault`` or ``replica_fault``, number of this attempt's rollbacks, budget, skipped_from and skipped_to (of skipped samples of ``sample_indices``; equal: none), skipped (all of them as text) |
| ``rerun`` | step, from_step, end_step, first_bad of the steps that were done again (``reruns``), place ``in_place`` or ``elsewhere``, fault (its kind), found (``transient``, ``repeated``, ``again``, ``undecided``; empty elsewhere), is_again, ranks (named), num_ranks, results: rank, digest of its state, digests of its losses up to some steps (``results``); tensor, operation (``operations``), reason |
| ``warning`` | code, message: a likely mistake of the program (``advice``) |
| ``outcome`` | exit ``done``, ``stopped_with_checkpoint``, ``stopped_without`` or ``failed``, cause of ``failed`` (``save_failed``, ``diverged``, ``corruption``: copies differ or a fault came again, ``superseded``: a newer attempt has begun; null where the program raised), step, message, dropped_lines |

| in | fields |
|---|---|
| ``stop`` | reason, deadline_unix_ms; may come again with an earlier deadline |
| ``checkpoint_now`` | |
| ``pins`` | generations that retention must leave, and no others of the control plane's |

Only rank 0 reports checkpoints, sizes, spikes, faults of values, rollbacks and re-runs. Both sides ignore unknown types and fields.
"""  # noqa: E501  # a table's row is one line

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.train.report.outlets import Outlets

MOST_WAITING_BYTES = 1 << 20
MOST_STEPS_BYTES = MOST_WAITING_BYTES // 2
"""Steps and their pace may fill half of the buffer, so that checkpoints and the outcome still find space."""
LONGEST_TEXT = 500
MOST_NAMED = 16
"""Faulty ranks that one message names."""
_LAST_WORDS_S = 2.0
_CONNECT_S = 1.0
_BETWEEN_TRIES_S = 0.02
_ENCODER = json.JSONEncoder()


class Channel:
    """Connection to the supervisor. Without a path or a listener it sends and receives nothing."""

    def __init__(self, path: str | None) -> None:
        self.dropped_lines = 0
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._received = b""
        self._socket: socket.socket | None = None
        self._outlets: Outlets | None = None
        self._arrivals, self._waited = select.poll(), select.poll()  # no two threads may use one at once
        if path:
            self._socket = _connected(path)
        if self._socket is not None:
            for poll in (self._arrivals, self._waited):
                poll.register(self._socket, select.POLLIN)

    def send(self, kind: str, **fields: object) -> None:
        """Send a message at once or buffer it; it is dropped and counted if the buffer is full."""
        if self._outlets is not None:
            self._outlets.receive(kind, fields)
        cut = {name: value[:LONGEST_TEXT] if isinstance(value, str) else value for name, value in fields.items()}
        line = _ENCODER.encode({"type": kind, **cut}).encode() + b"\n"
        most = MOST_STEPS_BYTES if kind in {"step", "pace"} else MOST_WAITING_BYTES
        with self._lock:
            if self._waiting:
                self._flush()
            if self._socket is None or len(self._waiting) + len(line) > most:
                self.dropped_lines += 1
                return
            self._waiting += line
            self._flush()

    def receive(self) -> list[dict[str, object]]:
        """Return the messages that arrived since the last call."""
        with self._lock:
            if self._waiting:
                self._flush()
            if self._socket is None or not self._arrivals.poll(0):
                return []
            try:
                while content := self._socket.recv(4096):
                    self._received += content
            except OSError:  # no more data now, or no listener any more
                pass
            *lines, self._received = self._received.split(b"\n")
            self._received = self._received[-MOST_WAITING_BYTES:]
        return [message for line in lines if (message := _message(line)) is not None]

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for a message; return whether there still is a connection."""
        channel = self._socket
        if channel is None:
            return False
        try:
            is_open = not self._waited.poll(seconds * 1000) or bool(channel.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            is_open = True
        except (OSError, ValueError):
            is_open = False
        if not is_open:
            self._drop()
        return is_open

    def _drop(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def lead_to(self, outlets: Outlets) -> None:
        """Pass each message to ``outlets`` from now on, and close them with the channel."""
        self._outlets = outlets

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def close(self) -> None:
        """Send the last messages within a moment, since they delay nothing any more, and then close the outlets."""
        self._close()
        outlets, self._outlets = self._outlets, None
        if outlets is not None:
            outlets.close()

    def _close(self) -> None:
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
                del self._waiting[: self._socket.send(self._waiting)]
        except BlockingIOError:
            return
        except OSError:
            self._socket.close()
            self._socket = None


def _connected(path: str) -> socket.socket | None:
    """Return a connection, or None. It does not block: a listener with a full backlog gets a second."""
    channel = socket.socket(socket.AF_UNIX)
    channel.setblocking(False)
    until = time.monotonic() + _CONNECT_S
    while True:
        try:
            channel.connect(path)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(_BETWEEN_TRIES_S)
                continue
        except OSError:
            pass
        else:
            return channel
        channel.close()
        return None


def _message(line: bytes) -> dict[str, object] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
