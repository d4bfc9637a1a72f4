"""One attempt on this machine: its order, its supervisor, its lease, its end."""

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from muster.domain.exit.exits import Verdict as ExitVerdict
from muster.domain.exit.exits import classify, parse_exit_record
from muster.domain.ids import AttemptId, Fence
from muster.domain.job.failure_rate import Record, rule_for_program
from muster.domain.states import Cause, StopReason
from muster.ports import LOOPBACK, meeting_port
from muster.wire.host import Order, PartContainer, PartLimits, Rendezvous
from workers.host import supervisor
from workers.host.attempt_folder import AttemptFolder, OrderHost, boottime_ms
from workers.host.ledger_file import current_boot_id
from workers.host.supervisor.proof.remains import what_is_left
from workers.local.plan import RunFolder, RunPlan

NODE: Final = "this-host"
CLEAN_PATIENCE_S: Final = 35.0
START_PATIENCE_MS: Final = 20_000
_POLL_S: Final = 0.05
_OF_THIS_MACHINE: Final = ("MUSTER_SCRATCH_DIR", "MUSTER_SCRATCH_BYTES", "MUSTER_LAST_SAVE_RETRY_S")
"""Variables that a host worker takes from its settings, and the control plane from its policy."""


@dataclass(slots=True)
class LocalAttempt:
    """Attempt on this machine. ``fence``: grows with each attempt of the folder, so that an older one writes nothing.

    ``accumulation``: the factor by which it cuts each batch into more pieces than the program's own. ``lost``: the
    attempts before it of this run that lost work.
    """

    plan: RunPlan
    run_folder: RunFolder
    attempt_id: AttemptId
    fence: Fence
    accumulation: int = 1
    lost: Record = field(default_factory=Record)
    stop: StopReason | None = None
    _started_ms: int = 0
    _lease_until_ms: int = 0
    _unsaid_kill_at_ms: int | None = None
    _hung: ExitVerdict | None = None
    _files: AttemptFolder = field(init=False)

    def __post_init__(self) -> None:
        self._files = AttemptFolder(self.run_folder.path, self.attempt_id)

    @property
    def path(self) -> Path:
        return self._files.path

    @property
    def is_ending(self) -> bool:
        """Return whether it was asked to stop, or is ended because it hangs."""
        return self.stop is not None or self._hung is not None

    def start(self, wall_time_s: float | None) -> None:
        """Start it. Raises OSError if this machine cannot start processes or write the folder."""
        self._started_ms = boottime_ms()
        self._lease_until_ms = self._started_ms + self.plan.lease_ms
        self._files.write_order(
            self._order(wall_time_s),
            OrderHost(current_boot_id(), NODE, self.plan.python),
            lease_until_ms=self._lease_until_ms,
            port=meeting_port(),
            user={"uid": None, "reason": "`muster run` runs programs as its caller"},
        )
        supervisor.spawn_supervisor(self.path)

    def has_ended(self) -> bool:
        """Return whether it has ended. It is called often: it also prolongs the lease."""
        state = supervisor.adopt(self.path).state
        if state == "not_started" and (self.stop or boottime_ms() > self._started_ms + START_PATIENCE_MS):
            return supervisor.refuse_start(self.path, self.stop or "its supervisor died before it began")
        if state == "vanished":
            supervisor.reap_vanished(self.path)
            return True
        self._report_stop()
        self._prolong()
        return state == "exited"

    def ask_to_stop(self, reason: StopReason, grace_ms: int) -> None:
        """Send SIGTERM now and SIGKILL after the grace; of several requests, the earliest end holds."""
        self.stop = self.stop or reason
        self._unsaid_kill_at_ms = boottime_ms() + grace_ms
        self._report_stop()

    def end_hung(self, verdict: ExitVerdict, grace_ms: int) -> None:
        """End it because it hangs, which ``verdict`` states, unless it is stopped already."""
        if self.stop is None and self._hung is None:
            self._hung = verdict
            self._unsaid_kill_at_ms = boottime_ms() + grace_ms
            self._report_stop()

    def end_at_once(self) -> None:
        """End it, since nothing supervises it any more. Returns after its end, at the latest after its lease."""
        self.ask_to_stop(StopReason.CANCEL, 0)
        until_ms = self._lease_until_ms + grace_ms(self.plan) + round(CLEAN_PATIENCE_S * 1000)
        while supervisor.adopt(self.path).state == "running" and boottime_ms() < until_ms:
            time.sleep(_POLL_S)

    def verdict(self) -> ExitVerdict:
        """Return the verdict on an ended attempt."""
        document = self._files.read("exit.json") or {"supervisor_vanished": True}
        if self._hung is not None and self.stop is None and document.get("stop_reason") == StopReason.HANG:
            return self._hung
        try:
            return classify(parse_exit_record(document), self.stop, rerun_codes=self.plan.spec.rerun_exit_codes)
        except ValueError as fault:
            return ExitVerdict(Cause.LAUNCH_FAILED, f"its exit record says nothing: {fault}")

    def record(self) -> dict[str, Any]:
        return self._files.read("exit.json") or {}

    def left(self) -> str:
        """Return what of it is left on this machine, as text; empty if nothing is. Wait for the proof."""
        deadline = time.monotonic() + CLEAN_PATIENCE_S
        while True:
            proof = self._files.read("clean.json")
            if proof is None or not proof.get("clean"):
                proof = supervisor.prove_clean(self.path)
            if proof.get("clean") or time.monotonic() > deadline:
                return what_is_left(proof)
            time.sleep(_POLL_S)

    def _report_stop(self) -> None:
        """Write the stop. On a full disk it is tried again, and nothing prolongs the lease until it is written."""
        reason = self.stop or (StopReason.HANG if self._hung is not None else None)
        if reason is None or self._unsaid_kill_at_ms is None:
            return
        with contextlib.suppress(OSError):
            self._files.write_stop(reason, self._unsaid_kill_at_ms)
            self._unsaid_kill_at_ms = None
            supervisor.wake(self.path)

    def _prolong(self) -> None:
        now_ms = boottime_ms()
        if self._unsaid_kill_at_ms is None and self._lease_until_ms - now_ms < self.plan.lease_ms * 3 // 4:
            with contextlib.suppress(OSError):  # a full disk: tried again, as long as the old one holds
                self._files.write_lease(now_ms + self.plan.lease_ms)
                self._lease_until_ms = now_ms + self.plan.lease_ms

    def _order(self, wall_time_s: float | None) -> Order:
        plan, program, shape = self.plan, self.plan.spec.program, self.plan.spec.shape
        kept = {"good_after_steps": plan.good_after_steps, "hold_s": plan.hold_s}
        interval = rule_for_program(Record(), plan.interval, len(plan.gpus), self.lost)
        pieces = {"MUSTER_ACCUMULATION": str(self.accumulation)} if self.accumulation > 1 else {}
        rule = plan.spec.on_value_fault
        ours = {
            **pieces,
            **({} if rule is None else {"MUSTER_ON_VALUE_FAULT": rule}),
            "MUSTER_LAST_SAVE_RETRY_S": f"{plan.last_save_retry_s:g}",
            **{name: os.environ[name] for name in _OF_THIS_MACHINE if name in os.environ},
            "MUSTER_CHECKPOINT_DIR": str(self.run_folder.checkpoints),
            "MUSTER_RESUME": json.dumps(kept),
            "MUSTER_CHECKPOINT_INTERVAL": json.dumps(interval),
            "MUSTER_SCRUB": json.dumps(plan.scrub.model_dump()),
        }
        return Order(
            attempt_id=self.attempt_id,
            job_id=self.run_folder.job_id,
            fence=self.fence,
            node_rank=0,
            num_nodes=1,
            ranks_per_node=shape.num_ranks_per_node,
            gpus=plan.gpus,
            launcher=program.launcher,
            script=program.script,
            args=program.args,
            argv=program.argv,
            python=program.python,
            working_dir=program.working_dir,
            env={**program.env, **ours, **plan.variables},
            rendezvous=Rendezvous(host=LOOPBACK, port=0),
            wall_time_s=wall_time_s,
            grace_s=grace_ms(plan) / 1000,
            kill_grace_s=grace_ms(plan) / 1000,  # no control plane waits for this lease to end
            log_limit_bytes_per_stream=plan.log_limit_bytes,
            limits=PartLimits(**plan.spec.limits.model_dump()),
            venv=program.venv,
            container=PartContainer.of(plan.spec.model_dump(mode="json")["program"]["container"]),
        )


def grace_ms(plan: RunPlan) -> int:
    """Return the milliseconds from SIGTERM to SIGKILL."""
    own_s = plan.spec.stop_grace_s
    return plan.timers.stop_grace_ms if own_s is None else round(own_s * 1000)


def leftovers(folder: Path) -> list[Path]:
    """Return attempts that a killed run has left running, or half ended."""
    found = sorted((folder / "attempts").glob("att_*"))
    return [path for path in found if supervisor.adopt(path).state in {"running", "vanished"}]


def end_leftover(path: Path, grace: int, is_hurried: Callable[[], bool]) -> None:
    """End it with its grace, or without after ``is_hurried``.

    Raises:
        OSError: it does not end.
    """
    kill_at_ms = boottime_ms() + grace
    files = AttemptFolder(path.parents[1], AttemptId(path.name))
    asked_ms: int | None = None
    while supervisor.adopt(path).state == "running":
        kill_at_ms = min(kill_at_ms, boottime_ms()) if is_hurried() else kill_at_ms
        if asked_ms != kill_at_ms:
            files.write_stop(StopReason.CANCEL, kill_at_ms)
            supervisor.wake(path)
            asked_ms = kill_at_ms
        if boottime_ms() > kill_at_ms + CLEAN_PATIENCE_S * 1000:
            raise OSError(f"{path.name} of an earlier run does not end; see {path / 'supervisor.log'}")
        time.sleep(_POLL_S)
    if supervisor.adopt(path).state == "vanished":
        supervisor.reap_vanished(path)
