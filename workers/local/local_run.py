"""The restart loop: attempt after attempt until the program has done its work, by the same rules as in a fleet.

``domain.exit.exits`` and ``domain.lifecycle.job`` decide the meaning of an end, the side that it counts against and the
time of the next attempt, as in the control plane; here is only the shell.
"""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, Final

from muster.domain.exit.causes import MATTERS_TWICE
from muster.domain.exit.exits import Verdict as ExitVerdict
from muster.domain.ids import AttemptId, Fence
from muster.domain.job.failure_rate import LOST_WORK, Record
from muster.domain.lifecycle import job as jobs
from muster.domain.lifecycle.model import JobLifecycle, Verdict
from muster.domain.states import Cause, JobState, StopReason
from muster.identity import new_id
from muster.train.checkpoint.fences import highest_fence
from watch.progress.durations import Durations
from workers.host.attempt_folder import boottime_ms
from workers.host.supervisor import files
from workers.host.watch.part_watch import Moving, no_lines
from workers.local.attempt import LocalAttempt, end_leftover, grace_ms, leftovers
from workers.local.hangs import HUNG_GRACE_MS, Hang, HangWatch, words_of
from workers.local.output import OutputReader, Received
from workers.local.plan import RunFolder, RunPlan
from workers.local.rerun_codes import LocalGpus, why_it_ends
from workers.local.stragglers import LocalStragglers

RUN_POLL_S: Final = 0.05
REQUESTED_TWICE: Final = 2
KEPT_ATTEMPTS: Final = 10
"""Number of attempts whose logs and records stay; checkpoints have rules of their own."""


@dataclass(slots=True)
class Ask:
    """Stop requests from signal handlers, counted."""

    times: int = 0

    def note(self) -> None:
        """Count a request; a handler may do no more, since it may interrupt whatever holds a lock."""
        self.times += 1

    def wait(self, seconds: float) -> bool:
        """Return whether a request arrives within that time."""
        until = time.monotonic() + seconds
        while not self.times and time.monotonic() < until:
            time.sleep(min(RUN_POLL_S, max(0.0, until - time.monotonic())))
        return bool(self.times)


@dataclass(slots=True)
class LocalRun:
    """Run of a program.

    ``report``: prints a sentence about it; ``show``: a stream's name and one line that it printed. ``readings``: of its
    GPUs, by name (``watch.progress.gpu_work``). ``kernel``: faults in the kernel's log since a moment, in milliseconds
    since 1970, and remarks about it.
    """

    plan: RunPlan
    folder: RunFolder
    report: Callable[[str], None]
    show: Callable[[str, str], None]
    ask: Ask = field(default_factory=Ask)
    readings: Callable[[], Mapping[str, float]] = dict
    kernel: Callable[[int], tuple[tuple[str, ...], tuple[str, ...]]] = lambda _since_ms: no_lines()
    _lifecycle: JobLifecycle = field(init=False)
    _ended: list[dict[str, Any]] = field(default_factory=list)
    _began_at: float = field(default_factory=time.monotonic)
    _farthest: int = 0
    _durations: Durations = field(init=False)
    _gpus: LocalGpus = field(init=False)

    def __post_init__(self) -> None:
        self._durations = Durations.of_document(files.read_json(self.folder.durations) or {})
        self._gpus = LocalGpus(self.plan.gpus, self.plan.spare_gpus)
        restart = self.plan.spec.restart
        self._lifecycle = JobLifecycle(
            self.folder.job_id,
            max_restarts=restart.max_restarts,
            max_oom_doublings=restart.gpu_oom_doublings,
            oom_doublings=min(self.folder.oom_doublings, restart.gpu_oom_doublings),
        )

    def run(self) -> dict[str, Any]:
        """Run until it succeeded, failed finally or was asked to stop. Returns how it ended; never leaves a process.

        Raises:
            OSError: the folder cannot be written, or this machine cannot start processes.
        """
        for path in leftovers(self.folder.path):
            self.report(f"{path.name} of an earlier run is still here; ending it")
            end_leftover(path, grace_ms(self.plan), lambda: bool(self.ask.times))
        while self._lifecycle.state is JobState.QUEUED:
            if self.ask.times:
                self._step(jobs.CancelRequested())
            else:
                self._attempt()
                self._pause()
        self._note()
        return self._outcome()

    def _attempt(self) -> None:
        self.folder.num_attempts += 1
        self._note()
        # Fences grow past every attempt that this folder has seen, whether it kept checkpoints or not.
        fence = Fence(max(highest_fence(self.folder.checkpoints) + 1, self.folder.num_attempts))
        attempt = LocalAttempt(
            replace(self.plan, gpus=self._gpus.used),
            self.folder,
            AttemptId(new_id("attempt")),
            fence,
            1 << self._lifecycle.oom_doublings,
            self._lost(),
        )
        shape = self.plan.spec.shape
        what = f"{shape.num_ranks_per_node} {'rank' if shape.num_ranks_per_node == 1 else 'ranks'}"
        self.report(f"attempt {self.folder.num_attempts} begins: {what}, logs in {attempt.path / 'logs'}")
        self._step(jobs.Placed())
        stragglers = LocalStragglers(self.plan.watch.stragglers, shape.num_ranks_per_node, self.report)
        hearing = OutputReader(attempt.path, self.report, self.show, self.plan.log_limit_bytes, stragglers)
        attempt.start(self._left_s())
        kernel = partial(self.kernel, files.wall_ms())
        watch = HangWatch(attempt.path, self.plan.watch, self._durations, self.folder.durations, self.readings, kernel)
        watch.start()
        try:
            self._follow(attempt, hearing, watch)
        finally:
            watch.stop()
        self._end(attempt, hearing.received)

    def _lost(self) -> Record:
        """Return the attempts of this run that lost work, and the hours since its begin times its GPUs or, without any,
        ranks.
        """
        num_failures = sum(one["cause"] in LOST_WORK for one in self._ended)
        hours = (time.monotonic() - self._began_at) / 3600
        return Record(num_failures, hours * (len(self.plan.gpus) or self.plan.spec.shape.num_ranks_per_node))

    def _follow(self, attempt: LocalAttempt, reader: OutputReader, watch: HangWatch) -> None:
        """Follow it until it has ended and its output was shown, unless the user asks twice to stop."""
        is_over = threading.Event()
        listener = threading.Thread(target=reader.listen_until, args=(is_over,), name="output", daemon=True)
        listener.start()
        try:
            self._watch(attempt, watch)
        except BaseException:  # our own fault must not leave a program without supervision
            attempt.end_at_once()
            raise
        finally:
            is_over.set()
        while listener.is_alive() and self.ask.times < REQUESTED_TWICE:
            listener.join(RUN_POLL_S)

    def _watch(self, attempt: LocalAttempt, watch: HangWatch) -> None:
        """Watch it: at a first request it may save and leave; at a second, it is killed. A hang ends it by its rule."""
        heeded = 0
        while not attempt.has_ended():
            if self.ask.times > heeded:
                heeded = self.ask.times
                grace = grace_ms(self.plan) if heeded == 1 else 0
                self.report(f"stopping; killed in {grace / 1000:g} s, or now if asked again" if grace else "killing it")
                self._step(jobs.CancelRequested())
                attempt.ask_to_stop(StopReason.CANCEL, grace)
            for found in takewhile(lambda _: not attempt.is_ending, watch.news()):
                self._react(attempt, found)
            time.sleep(RUN_POLL_S)

    def _react(self, attempt: LocalAttempt, found: Hang | Moving) -> None:
        """State what the watch found, and end a hung attempt unless the rule is to report it alone."""
        rule = self.plan.on_hang
        self.report(words_of(found, rule))
        if isinstance(found, Hang) and rule != "notify":
            culprit = found.verdict.ranks[0] if found.verdict.ranks else None
            attempt.end_hung(ExitVerdict(Cause.HANG, found.verdict.sentence.rstrip("."), culprit), HUNG_GRACE_MS)

    def _ends_by_hang(self, verdict: ExitVerdict) -> str | None:
        """Return why a hang ends the whole run; None if another attempt may follow."""
        if verdict.cause is not Cause.HANG:
            return None
        if self.plan.on_hang == "hold":
            return f"hang: {verdict.proof}; its rule is to hold"
        num_hangs = sum(1 for _ in takewhile(lambda each: each["cause"] == Cause.HANG, reversed(self._ended)))
        if num_hangs > self.plan.watch.hang_restarts:
            most = self.plan.watch.hang_restarts
            return f"hang: {verdict.proof}; it hung {num_hangs} times in a row, and {most} may be repeated"
        return None

    def _end(self, attempt: LocalAttempt, received: Received) -> None:
        verdict = attempt.verdict()
        if left := attempt.left():
            verdict = ExitVerdict(Cause.LAUNCH_FAILED, f"after its end there is left on this machine: {left}")
            self._lifecycle = _failed(self._lifecycle, f"unclean: {verdict.proof}; see {attempt.path / 'clean.json'}")
        self._ended.append(_document(self.folder.num_attempts, attempt, verdict, received))
        if self._lifecycle.state is JobState.ACTIVE:
            progressed = self._has_progressed(received)
            is_final = verdict.is_final or verdict.has_lacked  # there is no other host
            recurs = not progressed and self._is_second_in_a_row(verdict.cause)
            self._step(jobs.AttemptEnded(_counted(verdict), None, progressed, is_final, recurs=recurs))
            if (why := self._ends_by_hang(verdict) or why_it_ends(verdict)) is not None:
                self._lifecycle = _failed(self._lifecycle, why)
        words = f"attempt {self.folder.num_attempts} ended: {verdict.cause}: {verdict.proof}"
        self.report(words if received.saved_step is None else f"{words}; saved up to step {received.saved_step}")
        goes_on = self._lifecycle.state is JobState.RECOVERING
        if goes_on and (follows := self._gpus.after(self.plan, verdict, attempt.record())) is not None:
            self.report(follows)
        self._note()
        self._forget_old()

    def _is_second_in_a_row(self, cause: Cause) -> bool:
        return cause in MATTERS_TWICE and [each["cause"] for each in self._ended[-2:]] == [cause, cause]

    def _has_progressed(self, received: Received) -> bool:
        """Return whether it left a checkpoint beyond all that any attempt before it had or left."""
        before = max(self._farthest, received.resumed_step)
        self._farthest = max(before, received.saved_step or 0)
        return self._farthest > before

    def _pause(self) -> None:
        """Wait before the next try, cut short by a stop request and by the wall time."""
        if self._lifecycle.state is not JobState.RECOVERING:
            return
        life = self._lifecycle
        pause_s = max(0, (life.next_try_ms or 0) - boottime_ms()) / 1000
        left_s = self._left_s()
        if left_s is not None and left_s <= pause_s:
            self._lifecycle = _failed(
                life, f"walltime: it would be over before the next attempt; the last: {life.reason}"
            )
            return
        pieces = f", with {1 << life.oom_doublings} times as many pieces a batch" if life.oom_doublings else ""
        self.report(f"continues in {pause_s:.0f} s{pieces}; {life.restarts_used} of {life.max_restarts} restarts used")
        self._step(jobs.CancelRequested() if self.ask.wait(pause_s) else jobs.Tick())
        while self._lifecycle.state is JobState.RECOVERING:  # clocks of two kinds may differ by a tick
            time.sleep(RUN_POLL_S)
            self._step(jobs.Tick())

    def _step(self, event: jobs.Event) -> None:
        self._lifecycle, _ = jobs.step(self._lifecycle, event, boottime_ms(), self.plan.timers)

    def _left_s(self) -> float | None:
        """Return the rest of the wall time, which counts all attempts and the pauses between them."""
        wall_time_s = self.plan.spec.wall_time_s
        return None if wall_time_s is None else max(0.0, self._began_at + wall_time_s - time.monotonic())

    def _note(self) -> None:
        self.folder.note(self.plan.spec, self._outcome())

    def _outcome(self) -> dict[str, Any]:
        state = JobState.FAILED if self._lifecycle.state is JobState.HELD else self._lifecycle.state
        return {
            "name": self.plan.spec.name,
            "state": str(state),
            "state_reason": self._lifecycle.reason,
            "folder": str(self.folder.path),
            "oom_doublings": self._lifecycle.oom_doublings,
            "seconds": round(time.monotonic() - self._began_at, 1),
            "attempts": self._ended,
        }

    def _forget_old(self) -> None:
        for path in sorted((self.folder.path / "attempts").glob("att_*"))[:-KEPT_ATTEMPTS]:
            shutil.rmtree(path, ignore_errors=True)


def _counted(verdict: ExitVerdict) -> Verdict:
    """Return the verdict as it counts here, where there is no other host: repeated loss of the supervisor must end.

    Such an end gets a pause like a failed launch.
    """
    cause = Cause.LAUNCH_FAILED if verdict.cause is Cause.NODE_LOST else verdict.cause
    return Verdict(cause, verdict.proof)


def _failed(life: JobLifecycle, reason: str) -> JobLifecycle:
    return replace(life, state=JobState.FAILED, next_try_ms=None, reason=reason)


def _document(number: int, attempt: LocalAttempt, verdict: ExitVerdict, received: Received) -> dict[str, Any]:
    record = attempt.record()
    return {
        "number": number,
        "attempt_id": attempt.attempt_id,
        "cause": str(verdict.cause),
        "proof": verdict.proof,
        "culprit_rank": verdict.culprit_rank,
        "started_at_ms": record.get("started_at_ms"),
        "ended_at_ms": record.get("ended_at_ms"),
        "resumed_step": received.resumed_step,
        "step": received.step,
        "saved_step": received.saved_step,
        "loss": received.loss,
        "dropped_log_bytes": record.get("dropped_log_bytes", {}),
        "folder": str(attempt.path),
    }
