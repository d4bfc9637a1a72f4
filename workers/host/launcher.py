"""The launcher: heartbeats, claims, starts supervisors, stops them, reports, forgets. The shell of ``lifecycle.host``.

It decides nothing: each event goes through the pure machine, the ledger is on disk before a command is carried out,
and each command may be carried out again. If it is killed at any point, the next launcher adopts the running attempts.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import structlog
from msgspec import structs

from muster import progress
from muster.client.host import HostClient
from muster.client.transport import Problem, UnreachableError
from muster.domain.ids import AttemptId, Fence, JobId
from muster.domain.lifecycle import host
from muster.domain.lifecycle.host import HostLedger, HostRecord, Phase
from muster.domain.stored_content import OUTPUTS_FACT
from muster.ports import meeting_port
from muster.wire.host import (
    CAPABILITIES_FIELD,
    HOST_CAPABILITIES,
    LAID_SECRETS,
    PAIRWISE_CAPABILITY,
    PREFLIGHTS_FIELD,
    PROTOCOL_VERSION,
    TAKEN_IN_HEARTBEATS,
    ClaimRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    HostAttempt,
    HostReport,
    Order,
    PreflightReport,
    ReportBatch,
)
from workers.host import supervisor
from workers.host.attempt_folder import AttemptFolder, OrderHost, boottime_ms
from workers.host.bundle_order import BUNDLE_CAPABILITIES, BundlesHost, lacks_git
from workers.host.job_users import JobUsers
from workers.host.ledger_file import LedgerFile
from workers.host.log_relay import LogRelay
from workers.host.meetings import Meetings
from workers.host.output_order import OUTPUT_CAPABILITY
from workers.host.outputs.setting_aside import outputs_left, set_aside
from workers.host.preflight import Preflights
from workers.host.proof_tries import ProofTries
from workers.host.secret_delivery import SecretDelivery
from workers.host.starting import Starter
from workers.host.supervisor.proof.remains import what_is_left
from workers.host.wake_socket import WakeupSocket

BUSY_POLL_S: Final = 0.05
RETRY_REPORT_MS: Final = 1_000
GO_BEAT_MS: Final = 1_000
REPORT_UNCLEAN_MS: Final = 30_000
_OF_THE_STORE: Final = BUNDLE_CAPABILITIES | {OUTPUT_CAPABILITY}
"""Capabilities of a host that reaches the content store."""
_UNREADABLE: Final = frozenset({400, 422})
"""Statuses by which a server refuses a message that has a field it does not know."""
_REPORTED_PHASES: Final[Mapping[Phase, Literal["claimed", "started", "exited", "clean"]]] = {
    Phase.CLAIMING: "claimed",  # the grant may be in transit: from here on the server relies on this host
    Phase.CLAIMED: "claimed",
    Phase.STARTED: "started",
    Phase.EXITED: "exited",
    Phase.CLEAN: "clean",
}
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HostConfig:
    """Configuration of a host. ``python``: the interpreter for programs that name none (it has torch).

    ``is_warm``: have a torchrun ready that has imported torch, so that a program starts a second or more sooner.
    ``checkpoints_dir``: folder of checkpoints for jobs that name none; None: in the state folder. ``scratch``:
    variables for the folder and the size of dataset copies. ``secrets_dir``: a folder for each tenant, with its
    secrets. ``job_users``: users that the programs of jobs run as. ``bundles``: how it gets them.
    """

    node_id: str
    state_dir: Path
    python: str
    boot_id: str
    is_warm: bool = False
    checkpoints_dir: Path | None = None
    scratch: Mapping[str, str] = field(default_factory=dict)
    secrets_dir: Path | None = None
    job_users: JobUsers = field(default_factory=JobUsers)
    bundles: BundlesHost | None = None


class Launcher:
    def __init__(self, config: HostConfig, client: HostClient, ledger_file: LedgerFile, relay: LogRelay) -> None:
        self._config = config
        self._client = client
        self._file = ledger_file
        self._relay = relay
        self._ledger: HostLedger = ledger_file.load(config.boot_id)
        self._starter = Starter(config.state_dir, config.python, is_warm=config.is_warm)
        self._preflights = Preflights(config.state_dir, config.checkpoints_dir, self._write_order)
        self._meetings = Meetings(self._folder)
        self._secrets = SecretDelivery(client, config.node_id, config.boot_id, boottime_ms)
        self._seq = 0
        self._next_heartbeat_ms = 0
        self._last_beat_ms = 0
        self._next_report_ms = 0
        self._unreported: set[AttemptId] = set()
        self._proofs: dict[AttemptId, ProofTries] = {}
        self._taken: frozenset[str] = frozenset()
        self._was_reachable = True
        self._claimable = tuple(
            one
            for one in HOST_CAPABILITIES
            if (one not in _OF_THE_STORE or config.bundles is not None) and not lacks_git(one)
        )
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            host.SendClaim: self._send_claim,
            host.Prepare: self._prepare,
            host.StartProgram: self._start_program,
            host.StopProgram: self._stop_program,
            host.ExtendLease: self._extend_lease,
            host.ProveClean: self._prove_clean,
            host.Report: self._note_report,
            host.Forget: self._forget,
        }

    def run(self, wakeup_socket: WakeupSocket, stop: threading.Event) -> None:
        """Work until ``stop``: programs continue after it, and the next launcher adopts them."""
        self.adopt()
        try:
            while not stop.is_set():
                rung = wakeup_socket.wait(self._pause_s())
                self.turn(woken=rung)
        finally:
            self._starter.close()

    def turn(self, *, woken: bool) -> None:
        """Do one round: beat if due or woken, check programs, apply the time, send unsent reports."""
        if self._preflights.turn() or woken or boottime_ms() >= self._next_beat_at_ms():
            self._heartbeat(woken=woken)
        self._check_programs()
        self._apply(host.Tick())
        self._send_reports()
        self._starter.prepare()

    def _pause_s(self) -> float:
        until_beat_ms = max(0, self._next_beat_at_ms() - boottime_ms())
        prepare_ms = self._starter.pause_ms()
        until_ms = until_beat_ms if prepare_ms is None else min(until_beat_ms, prepare_ms)
        is_busy = (
            self._unreported
            or self._preflights.is_busy
            or any(record.phase is not Phase.CLEAN for record in self._ledger.records.values())
        )
        return min(until_ms / 1000, BUSY_POLL_S) if is_busy else until_ms / 1000

    def _next_beat_at_ms(self) -> int:
        """Return the next beat's time. A host that is ready beats more often until its go, since a wake-up
        may be lost.
        """
        often_ms = self._last_beat_ms + GO_BEAT_MS
        return min(self._next_heartbeat_ms, often_ms) if self._waiting() else self._next_heartbeat_ms

    def _waiting(self) -> list[AttemptId]:
        """Return the parts that are ready and have no go."""
        return [
            record.attempt_id
            for record in self._ledger.records.values()
            if record.phase is Phase.CLAIMED and record.is_ready and not record.has_go
        ]

    def adopt(self) -> None:
        """Continue after the last launcher."""
        for place in supervisor.sweep_secrets():
            _log.warning("secrets_swept", folder=str(place))
        self._take(host.restarted(self._ledger, self._config.boot_id), is_to_save=True)

    def _apply(self, event: host.Event) -> None:
        outcome = host.step(self._ledger, event, boottime_ms())
        self._take(outcome, is_to_save=outcome[0] != self._ledger)

    def _take(self, outcome: host.Outcome, *, is_to_save: bool) -> None:
        """Save the ledger, then use it, then carry out its commands.

        Where it cannot be saved, this launcher continues from what the next one would find. Otherwise its next answers
        and commands would rest on a claim, a go or a stop that a crash takes back.
        """
        ledger, commands = outcome
        if is_to_save:
            self._file.save(ledger)
        self._ledger = ledger
        self._carry_out(commands)

    def _carry_out(self, commands: tuple[host.Command, ...]) -> None:
        for command in commands:
            self._handlers[type(command)](command)

    def _request(self, sent_ms: int, *, woken: bool) -> HeartbeatRequest:
        """Return a heartbeat. A field that an earlier release's server does not know is left out, since it would refuse
        the beat.
        """
        self._seq += 1
        attempts = tuple(
            HostAttempt(
                attempt_id=record.attempt_id,
                fence=record.fence,
                phase=_REPORTED_PHASES[record.phase],
            )
            for record in self._ledger.records.values()
        )
        # The sequence number must grow across launchers of one boot: the boot-time clock does.
        return HeartbeatRequest(
            protocol=PROTOCOL_VERSION,
            boot_id=self._config.boot_id,
            seq=sent_ms * 64 + self._seq % 64,
            attempts=attempts,
            is_woken=woken,
            capabilities=self._capabilities if CAPABILITIES_FIELD in self._taken else (),
            preflights=self._preflights.reports() if PREFLIGHTS_FIELD in self._taken else (),
        )

    @property
    def _capabilities(self) -> tuple[str, ...]:
        """Return what heartbeats list. ``LAID_SECRETS`` says that a secret unknown to the server may be a file here."""
        laid = () if self._config.secrets_dir is None else (LAID_SECRETS,)
        builds = () if self._config.bundles is None else self._config.bundles.builds
        return (*self._claimable, *laid, *builds)

    def _beat(self, request: HeartbeatRequest) -> tuple[HeartbeatAnswer, tuple[PreflightReport, ...]]:
        """Send a beat and return the answer with the preflights that were reported.

        If an operator went back to an earlier release meanwhile, the beat is repeated at once with less content: the
        leases of running attempts depend on it.
        """
        try:
            return self._client.heartbeat(request), request.preflights
        except Problem as fault:
            if not self._taken or fault.status not in _UNREADABLE:
                raise
        _log.info(
            "heartbeat_shortened", node_id=self._config.node_id, why="the server does not take what it took before"
        )
        self._taken = frozenset()
        return self._client.heartbeat(structs.replace(request, capabilities=(), preflights=())), ()

    def _heartbeat(self, *, woken: bool) -> None:
        sent_ms, taken_before = boottime_ms(), self._taken
        request = self._request(sent_ms, woken=woken)
        self._last_beat_ms, self._next_heartbeat_ms = sent_ms, sent_ms + 1_000
        received = self._ask(lambda: self._beat(request))
        if received is None:
            return
        answer, reported = received
        self._take_answer(answer, reported, sent_ms)
        self._taken = frozenset(answer.takes).intersection(TAKEN_IN_HEARTBEATS)
        if self._taken - taken_before:
            self._heartbeat(woken=False)  # reports this host's features, which the server must not assume before

    def _take_answer(self, answer: HeartbeatAnswer, sent: tuple[PreflightReport, ...], sent_ms: int) -> None:
        for folder in self._preflights.receive(answer.preflights, sent):
            folder.mark_forgotten()
            self._relay.drain(folder.path)
        self._next_heartbeat_ms = sent_ms + round(answer.heartbeat_s * 1000)
        self._apply(_event_of(answer, sent_ms))
        if answer.lease_s > 0 and PAIRWISE_CAPABILITY in answer.takes:  # a stale beat's answer has no orders either
            self._meetings.receive(self._waiting(), answer.pairwise_orders)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return the answer, or None if the control plane does not answer or refuses, which is logged once."""
        try:
            answer = question()
        except (UnreachableError, Problem) as fault:
            if self._was_reachable or isinstance(fault, Problem):
                _log.warning("control_plane_refuses", node_id=self._config.node_id, fault=str(fault))
            self._was_reachable = False
            return None
        if not self._was_reachable:
            _log.info("control_plane_answers_again", node_id=self._config.node_id)
        self._was_reachable = True
        return answer

    def _send_claim(self, command: host.SendClaim) -> None:
        request = ClaimRequest(
            protocol=PROTOCOL_VERSION,
            boot_id=self._config.boot_id,
            fence=command.fence,
            nonce=f"{self._config.node_id}/{command.attempt_id}",
            capabilities=self._claimable,
        )
        sent_ms = boottime_ms()
        answer = self._ask(lambda: self._client.claim(command.attempt_id, request))
        if answer is None:
            return
        if not answer.granted or answer.order is None:
            _log.info("claim_refused", attempt_id=command.attempt_id, why=answer.refusal)
            self._apply(host.ClaimRefused(command.attempt_id))
            return
        lease_ms = round(answer.lease_s * 1000)
        port = answer.order.rendezvous.port or meeting_port()
        self._write_order(self._folder(command.attempt_id), answer.order, port, sent_ms + lease_ms)
        awaits_go = answer.order.preparation is not None
        granted = host.ClaimGranted(command.attempt_id, JobId(answer.order.job_id), sent_ms, lease_ms, awaits_go)
        self._apply(granted)

    def _write_order(self, folder: AttemptFolder, order: Order, port: int, lease_until_ms: int) -> None:
        config = self._config
        at = OrderHost(
            config.boot_id, config.node_id, config.python, config.secrets_dir, config.scratch, config.bundles
        )
        user = config.job_users.document(order.job_number)
        folder.write_order(order, at, lease_until_ms=lease_until_ms, port=port, user=user)

    def _prepare(self, command: host.Prepare) -> None:
        record = self._ledger.records[command.attempt_id]
        self._spawn(record, is_allowed=host.may_prepare(record, boottime_ms()))
        self._check(record)

    def _start_program(self, command: host.StartProgram) -> None:
        record = self._ledger.records[command.attempt_id]
        folder = self._folder(command.attempt_id)
        may_start = host.may_start(record, boottime_ms())
        if record.awaits_go and may_start:
            folder.write_go()
            supervisor.wake(folder.path)
        self._spawn(record, is_allowed=may_start)
        self._check(record)

    def _spawn(self, record: HostRecord, *, is_allowed: bool) -> None:
        """Start a part's supervisor, unless it has had one."""
        folder = self._folder(record.attempt_id)
        if supervisor.adopt(folder.path).state != "not_started":
            return
        if not is_allowed:
            self._never_start(record)
        elif self._secrets.are_here(record, folder):
            self._starter.start(folder.path)

    def _stop_program(self, command: host.StopProgram) -> None:
        folder = self._folder(command.attempt_id)
        folder.write_stop(command.reason, command.kill_at_ms)
        if supervisor.adopt(folder.path).state == "not_started":
            self._never_start(self._ledger.records[command.attempt_id])
        else:
            supervisor.wake(folder.path)

    def _never_start(self, record: HostRecord) -> None:
        why = record.stop_reason or "its lease had ended"
        supervisor.refuse_start(self._folder(record.attempt_id).path, why)

    def _extend_lease(self, command: host.ExtendLease) -> None:
        self._folder(command.attempt_id).write_lease(command.lease_until_ms)

    def _prove_clean(self, command: host.ProveClean) -> None:
        """Prove that nothing is left. A failed proof is tried again, and later reported: the server then cordons the
        host.
        """
        tries = self._proofs.setdefault(command.attempt_id, ProofTries(first_ms=boottime_ms()))
        if not tries.are_due:
            return
        folder = self._folder(command.attempt_id)
        proof = folder.read("clean.json")
        if proof is None or not proof.get("clean"):
            proof = supervisor.prove_clean(folder.path)
        if proof.get("clean"):
            self._set_aside(command.attempt_id)
            self._proofs.pop(command.attempt_id, None)
            self._apply(host.ProvedClean(command.attempt_id))
            return
        tried_for_ms = tries.wait()
        if not tries.is_reported and tried_for_ms >= REPORT_UNCLEAN_MS:
            tries.is_reported = True
            _log.error("not_clean", attempt_id=command.attempt_id, proof=proof)
            self._note_report(host.Report(command.attempt_id))

    def _set_aside(self, attempt_id: AttemptId) -> None:
        """Set the outputs aside before anything reports the end: an attempt of the same user may follow at once."""
        try:
            set_aside(self._config.state_dir, attempt_id)
        except (OSError, msgspec.MsgspecError) as fault:
            _log.error("outputs_not_set_aside", attempt_id=attempt_id, fault=str(fault))

    def _check_programs(self) -> None:
        for record in tuple(self._ledger.records.values()):
            progress.advance()  # a proof may take seconds, and there may be many
            if record.phase in {Phase.CLAIMED, Phase.STARTED}:
                self._check(record)
            elif record.phase is Phase.EXITED:
                self._prove_clean(host.ProveClean(record.attempt_id))

    def _check(self, record: HostRecord) -> None:
        folder = self._folder(record.attempt_id)
        state = supervisor.adopt(folder.path).state
        if state == "vanished":
            supervisor.reap_vanished(folder.path)
            state = "exited"
        if state in {"running", "exited"} and record.phase is Phase.CLAIMED:
            self._note_progress(record, folder)
        if state == "exited":
            self._apply(host.ProgramExited(record.attempt_id))

    def _note_progress(self, record: HostRecord, folder: AttemptFolder) -> None:
        """Record the progress of a running supervisor: it prepares, waits for its go, or has its program started."""
        if not record.awaits_go or folder.has_go():
            self._apply(host.ProgramStarted(record.attempt_id))
        elif not record.is_ready and folder.read("ready.json") is not None:
            self._apply(host.HostReady(record.attempt_id))
        elif record.is_ready and self._meetings.is_news(record.attempt_id):
            self._note_report(host.Report(record.attempt_id))

    def _note_report(self, command: host.Report) -> None:
        self._unreported.add(command.attempt_id)
        self._next_report_ms = 0

    def _send_reports(self) -> None:
        if boottime_ms() < self._next_report_ms:
            return
        for attempt_id in sorted(self._unreported):
            record = self._ledger.records.get(attempt_id)
            if record is None:
                self._unreported.discard(attempt_id)
                continue
            if record.phase in {Phase.EXITED, Phase.CLEAN}:
                self._relay.drain(self._folder(attempt_id).path)
            batch = ReportBatch(protocol=PROTOCOL_VERSION, reports=self._facts(record))
            answer = self._ask(partial(self._client.report, attempt_id, batch))
            if answer is None:
                self._next_report_ms = boottime_ms() + RETRY_REPORT_MS
                return
            self._unreported.discard(attempt_id)
            if answer.go:
                self._apply(host.GoReceived(attempt_id))
            elif PAIRWISE_CAPABILITY in answer.takes and attempt_id in self._waiting():
                self._meetings.receive([attempt_id], answer.pairwise_orders)
            if record.phase is Phase.CLEAN:
                self._next_heartbeat_ms = 0  # the next answer orders to forget it

    def _facts(self, record: HostRecord) -> tuple[HostReport, ...]:
        """Return all facts in order, from the first on: earlier reports may have been lost."""
        folder = self._folder(record.attempt_id)
        kinds: list[tuple[Any, dict[str, Any]]] = []
        if record.is_ready:
            kinds.append(("ready", folder.read("ready.json") or {}))
        if record.has_started:
            kinds.append(("started", {}))
        elif (met := self._meetings.fact(record.attempt_id)) is not None:
            kinds.append(("met", met))
        if record.phase in {Phase.EXITED, Phase.CLEAN}:
            kinds.append(
                ("exited", folder.read("exit.json") or {"spawn_error": "its lease had ended before it started"})
            )
        if record.phase is Phase.CLEAN:
            left = {OUTPUTS_FACT: outputs_left(self._config.state_dir, record.attempt_id)}
            kinds.append(("cleaned", {**(folder.read("clean.json") or {"clean": True}), **left}))
        elif record.attempt_id in self._proofs and self._proofs[record.attempt_id].is_reported:
            proof = {**(folder.read("clean.json") or {}), "clean": False}
            kinds.append(("cleaned", {**proof, "why": what_is_left(proof)}))
        return tuple(
            HostReport(kind=kind, boot_id=record.boot_id, fence=record.fence, record=document)
            for kind, document in kinds
        )

    def _forget(self, command: host.Forget) -> None:
        folder = self._folder(command.attempt_id)
        self._unreported.discard(command.attempt_id)
        self._proofs.pop(command.attempt_id, None)
        self._meetings.forget(command.attempt_id)
        if folder.path.is_dir():
            self._set_aside(command.attempt_id)
            folder.mark_forgotten()
            self._relay.drain(folder.path)

    def _folder(self, attempt_id: AttemptId) -> AttemptFolder:
        return AttemptFolder(self._config.state_dir, attempt_id, self._config.checkpoints_dir)


def _event_of(answer: HeartbeatAnswer, sent_ms: int) -> host.HeartbeatAnswered:
    return host.HeartbeatAnswered(
        sent_ms=sent_ms,
        lease_ms=round(answer.lease_s * 1000),
        unclaimed=tuple((AttemptId(item.attempt_id), Fence(item.fence)) for item in answer.unclaimed),
        stops={AttemptId(item.attempt_id): (item.reason, round(item.kill_after_s * 1000)) for item in answer.stops},
        forget=tuple(AttemptId(attempt_id) for attempt_id in answer.forget),
        go=tuple(AttemptId(attempt_id) for attempt_id in answer.go),
    )
