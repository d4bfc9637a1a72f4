"""A host's launcher with real supervisors and programs, against the real services, without HTTP between."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from control.core.unit_of_work import UnitOfWork
from control.hosts import host_reports, protocol, secret_delivery
from control.jobs import jobs
from control.jobs.job_logs import EVERYTHING, chunks_after
from control.secrets.key_wrapping import KeyWrapper
from control.training import training
from control.watch import line_intake
from muster.client.transport import Problem, UnreachableError
from muster.domain.errors import MusterError, SecretKeyError
from muster.domain.ids import AttemptId, JobId
from muster.domain.states import AttemptState, JobState
from muster.wire.host import (
    ClaimAnswer,
    ClaimRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    LogAnswer,
    LogBatch,
    ReportAnswer,
    ReportBatch,
    SecretsAnswer,
    SecretsRequest,
)
from muster.wire.training import FindingsAnswer, FindingsBatch, TrainAnswer, TrainBatch
from tests.fleet_factory import Fleet
from workers.host.bundle_order import BundlesHost
from workers.host.job_users import JobUsers
from workers.host.launcher import HostConfig, Launcher
from workers.host.ledger_file import LedgerFile
from workers.host.log_relay import LogRelay

Answer = TypeVar("Answer")


class DirectClient:
    """Calls the host services as the API's routes do. ``is_cut`` plays a partition. ``secret_keys``: the server's."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.is_cut = False
        self.secret_keys: KeyWrapper | None = None

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        return self._call(protocol.HEARTBEAT, lambda unit: protocol.heartbeat(unit, request), quiet=True)

    def claim(self, attempt_id: AttemptId, request: ClaimRequest) -> ClaimAnswer:
        return self._call(protocol.CLAIM, lambda unit: protocol.claim(unit, attempt_id, request))

    def secrets(self, attempt_id: AttemptId, request: SecretsRequest) -> SecretsAnswer:
        delivery = self._call(
            secret_delivery.READ, lambda unit: secret_delivery.read_for_host(unit, attempt_id, request)
        )
        try:
            if self.secret_keys is None:
                raise SecretKeyError("this control plane keeps no secrets")
            return delivery.sealed(self.secret_keys)
        except MusterError as error:
            raise Problem(error.status, error.code, error.detail) from error

    def report(self, attempt_id: AttemptId, batch: ReportBatch) -> ReportAnswer:
        return self._call(host_reports.REPORT, lambda unit: host_reports.report(unit, attempt_id, batch))

    def send_logs(self, attempt_id: AttemptId, batch: LogBatch) -> LogAnswer:
        return self._call(protocol.LOGS, lambda unit: protocol.store_logs(unit, attempt_id, batch), quiet=True)

    def send_training(self, attempt_id: AttemptId, batch: TrainBatch) -> TrainAnswer:
        return self._call(training.RECORD, lambda unit: training.take(unit, attempt_id, batch), quiet=True)

    def send_findings(self, attempt_id: AttemptId, batch: FindingsBatch) -> FindingsAnswer:
        return self._call(line_intake.RECORD, lambda unit: line_intake.take(unit, attempt_id, batch), quiet=True)

    def _call(self, action: str, work: Callable[[UnitOfWork], Answer], *, quiet: bool = False) -> Answer:
        if self.is_cut:
            raise UnreachableError("cut off")
        try:
            with self._fleet.units.begin(self._fleet.node_principal, action, quiet=quiet) as unit:
                return work(unit)
        except MusterError as error:
            raise Problem(error.status, error.code, error.detail) from error


class HostCase:
    """One host on one folder; ``restart`` drops its launcher and starts the next."""

    def __init__(
        self,
        fleet: Fleet,
        state_dir: Path,
        job_users: JobUsers | None = None,
        python: str = sys.executable,
        bundles: BundlesHost | None = None,
    ) -> None:
        self.fleet = fleet
        self.job_users = job_users or JobUsers()
        self.python = python
        self.bundles = bundles
        self.secrets_dir = state_dir.parent / "secrets"
        self.scratch: dict[str, str] = {}
        self.client = DirectClient(fleet)
        self.state_dir = state_dir
        self.boot_id = "boot-1"
        self._file: LedgerFile | None = None
        self.launcher = self.restart()
        self.launcher.turn(woken=False)  # the first heartbeat makes the host one that may be given work

    def restart(self) -> Launcher:
        self.close()
        self._file = LedgerFile(self.state_dir)
        self.relay = LogRelay(self.state_dir, self.client)  # type: ignore[arg-type]  # the same calls, without HTTP
        config = HostConfig(
            self.fleet.node_id,
            self.state_dir,
            self.python,
            self.boot_id,
            scratch=self.scratch,
            secrets_dir=self.secrets_dir,
            job_users=self.job_users,
            bundles=self.bundles,
        )
        self.launcher = Launcher(config, self.client, self._file, self.relay)  # type: ignore[arg-type]  # as above
        self.launcher.adopt()
        return self.launcher

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def submit(self, code: str, **spec: object) -> JobId:
        program = {"launcher": "command", "argv": [sys.executable, "-c", code]}
        job_id = self.fleet.submit(program=program, **spec)
        self.fleet.cycle()
        return job_id

    def turn_until(self, is_so: Callable[[], bool], *, timeout_s: float = 90.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < deadline, "did not come about in time"
            self.launcher.turn(woken=True)
            self.relay.drain_all()
            time.sleep(0.05)  # a turn takes CPU time that the programs need

    def run(self, job_id: JobId) -> JobState:
        self.turn_until(lambda: self.fleet.job(job_id).finished_at is not None)
        return self.fleet.job(job_id).state

    def run_until_started(self, job_id: JobId) -> None:
        self.turn_until(lambda: self.fleet.attempts(job_id)[0].attempt.state is AttemptState.RUNNING)

    def run_until_clean(self) -> None:
        self.turn_until(lambda: self.fleet.num_taken_gpus() == 0)
        self.turn_until(lambda: not any((self.state_dir / "attempts").iterdir()))

    def log(self, job_id: JobId) -> bytes:
        with self.fleet.units.begin(self.fleet.tenant, jobs.READ) as unit:
            chunks = chunks_after(unit, job_id, EVERYTHING, after=0, limit=10_000)
        streams: dict[tuple[str, str, str], list[bytes]] = {}  # a line may come in pieces
        for chunk in chunks:
            streams.setdefault((chunk.attempt_id, chunk.node_id, chunk.stream), []).append(chunk.content)
        return b"".join(b"".join(pieces) for pieces in streams.values())
