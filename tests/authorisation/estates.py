"""Two tenants alike, each with one of everything that a path may name, on a fleet that has been through something.

What is a tenant's own carries the tenant's word in every text that people, programs and rules may write, and it stands
in nothing else: an answer that holds the word of another tenant shows what it must not.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy import select

from control.attempts.attempts import lock_attempt
from control.content import bundles
from control.content.manifests import reading_of
from control.core.sealer import seal_once
from control.core.sequencer import sequence_once
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import cordons
from control.health.burn_ins import orders
from control.health.evacuation import evacuate_once
from control.health.judge import SIGNALS, judge_once
from control.health.repairs import begin_repair
from control.hosts import folder_uploads, protocol
from control.jobs import jobs
from control.jobs import read as job_reads
from control.jobs.read import AttemptView
from control.notifications import routes, sealing
from control.notifications.fan_out import fan_out_once
from control.policy.policies import ACTIVATE, store_policy
from control.telemetry.intake import Intake, IntakeLimits
from control.telemetry.reports import IncomingReport, Outcome
from control.tenants import keys, persons, quotas, tenants
from control.training import training
from control.watch.verdicts import record_verdict
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.db.models import (
    Checkpoint,
    EvidenceRow,
    Gpu,
    GpuStandingChange,
    Incident,
    Job,
    JobOutput,
    Node,
    Notification,
    Reclaim,
)
from muster.domain.evidence.repairs import RepairAction, RepairOutcome
from muster.domain.ids import GpuUuid, JobId, ReclaimId, TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.job.verdicts import VerdictKind, VerdictReaction
from muster.domain.notifications.routes import RouteDefinition
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.principals import Principal, Role, system_principal
from muster.domain.states import ReclaimState, Standing
from muster.domain.times import to_ms
from muster.identity import new_id
from muster.wire.content import FolderUploadsRequest
from muster.wire.host import PROTOCOL_VERSION, LogBatch, LogChunk
from muster.wire.training import TrainBatch, TrainLine
from scheduler.quota.tenancy import Quota
from tests.control.secrets.secret_case import KeyService, admin_of, set_secret
from tests.fleet_factory import ENDS_AT_ITS_FAULT, OPERATOR, Fleet
from tests.played_host import PlayedHost, played_host
from tests.stored_signals import add_signal
from tests.telemetry_reports import reading, report
from tests.waiting import wait_until
from watch.phases import Phase
from watch.reports import Frame
from watch.verdicts import Verdict

JUDGE: Final = system_principal("judge")
SECRET_KEYS: Final = KeyService()
WORDS: Final = ("ocelot", "quetzal")
WRITTEN: Final = (
    *("tenant", "job", "script", "argument", "environment", "label", "print", "damage", "second", "regret"),
    *("key", "person", "secret", "ceiling", "reclaim", "cordon", "burn-in"),
)
"""What is written with a tenant's word before it: names, a specification, what a rank prints and says, reasons."""
BYSTANDER: Final = "axolotl"
"""The word of a third tenant, for which the two others give GPUs back."""


@dataclass(frozen=True)
class Estate:
    """What one tenant has. ``ids``: by the names that paths give them; ``secrets``: what no other tenant may read."""

    word: str
    tenant_id: TenantId
    host: PlayedHost
    ids: dict[str, str]
    secrets: frozenset[str]


@dataclass(frozen=True)
class Estates:
    """The third tenant's secrets stand in ``bystander``."""

    units: UnitOfWorkFactory
    a: Estate
    b: Estate
    bystander: frozenset[str]


def make_estates(units: UnitOfWorkFactory) -> Estates:
    fleet = Fleet(units, OPERATOR, TenantId(""), played_host(units, "north").node_id)
    known = {host.node_id: host for host in (PlayedHost(units, fleet.node_id), played_host(units, "south"))}
    _make_healthy(units)
    owners = [_tenant(units, word) for word in WORDS]
    job_ids = [_submit(units, owner, _spec(word)) for word, owner in zip(WORDS, owners, strict=True)]
    for host in known.values():
        host.beat()
    fleet.reconcile()
    fleet.cycle()
    with units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, DEFAULT_POLICY, reason="as it was")
    third = _tenant(units, BYSTANDER)
    wanting = _submit(units, third, _spec(BYSTANDER))
    lives = [_Life(units, *one) for one in zip(WORDS, owners, job_ids, strict=True)]
    for life in lives:
        life.run(known, for_job=wanting)
    while judge_once(units, JUDGE):
        pass
    evacuate_once(units, JUDGE)
    a, b = [life.estate() for life in lives]
    while sequence_once(units):
        pass
    seal_once(units)
    assert third.tenant_id is not None
    return Estates(units, a, b, frozenset({BYSTANDER, wanting, third.tenant_id}))


def _tenant(units: UnitOfWorkFactory, word: str) -> Principal:
    with units.begin(OPERATOR, tenants.CREATE) as unit:
        tenant_id = tenants.create(unit, name=f"{word}-tenant").id
    return Principal(name=f"{word}-admin", role=Role.TENANT_ADMIN, tenant_id=tenant_id)


def _spec(word: str) -> dict[str, Any]:
    """On the two GPUs of one host."""
    return {
        "name": f"{word}-job",
        "program": {
            "script": f"/srv/{word}-script.py",
            "args": [f"--{word}-argument"],
            "env": {"NOTE": f"{word}-environment"},
        },
        "shape": {"gpus_per_node": 2},
        **ENDS_AT_ITS_FAULT,
        "labels": {"note": f"{word}-label"},
    }


def _submit(units: UnitOfWorkFactory, owner: Principal, spec: dict[str, Any]) -> JobId:
    with units.begin(owner, jobs.SUBMIT) as unit:
        return jobs.submit(unit, JobSpec.model_validate(spec, strict=False)).id


def _make_healthy(units: UnitOfWorkFactory) -> None:
    with units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        for days, standing in ((40, Standing.PROBATION), (12, Standing.HEALTHY)):
            for gpu in unit.session.scalars(select(Gpu)):
                gpu.standing = standing
                at = unit.now - timedelta(days=days)
                unit.session.add(
                    GpuStandingChange(gpu_uuid=gpu.uuid, target=standing, at=at, reason="proved", actor="system:judge")
                )
            unit.session.flush()


@dataclass
class _Life:
    """One tenant's, from the placement of its job on."""

    units: UnitOfWorkFactory
    word: str
    owner: Principal
    job_id: JobId

    def run(self, hosts_by_id: dict[Any, PlayedHost], *, for_job: JobId) -> None:
        """Claimed, started, trained and reported; struck by a fault, ordered to leave, written about by persons."""
        view = self._attempt()
        self.host = hosts_by_id[view.hosts[0].part.node_id]
        self.attempt_id, self.fence = view.attempt.id, view.attempt.fence
        self.gpus = view.hosts[0].gpus
        assert self.host.claim(self.attempt_id, self.fence).granted
        self.host.report(self.attempt_id, self.fence, "started")
        self._print_and_train()
        self._judge()
        self._cancel_another()
        self._report_readings()
        self._add_to_the_tenant()
        self._give_way(for_job)
        self._break(self.gpus[0])
        with self.units.begin(OPERATOR, cordons.CREATE) as unit:
            made = cordons.create(unit, node_id=self.host.node_id, reason=f"{self.word}-cordon")
            self.cordon_id = made.id
        with self.units.begin(OPERATOR, orders.ORDER) as unit:
            self.burn_in_id = orders.order(unit, self.gpus[1], reason=f"{self.word}-burn-in").id
        with self.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
            gpu = unit.session.get_one(Gpu, self.gpus[1])
            repair = begin_repair(unit, gpu, RepairAction.RESET, "other", f"{self.word}-repair")
            repair.ended_at, repair.outcome, repair.text = unit.now, RepairOutcome.DONE, "done"
            self.repair_id = repair.id

    def _attempt(self) -> AttemptView:
        with self.units.begin(self.owner, jobs.READ) as unit:
            (view,) = job_reads.attempts_of(unit, self.job_id)
        return view

    def _print_and_train(self) -> None:
        chunk = LogChunk(stream="0", offset=0, content=f"{self.word}-print\n".encode())
        batch = LogBatch(protocol=PROTOCOL_VERSION, fence=self.fence, chunks=(chunk,))
        with self.units.begin(self.host.principal, protocol.LOGS, quiet=True) as unit:
            protocol.store_logs(unit, self.attempt_id, batch)
        now_ms = to_ms(self.units.clock())
        generation = f"step-{1:08d}/gen-{self.fence}"
        messages: list[dict[str, Any]] = [
            {"type": "step", "step": 1, "loss": 4.0, "step_s": 0.25},
            {"type": "checkpoint", "step": 1, "generation": generation, "status": "verified", "at_unix_ms": now_ms},
            {"type": "checkpoint_rejected", "generation": generation, "why": f"{self.word}-damage"},
        ]
        lines = tuple(TrainLine(at_ms=now_ms, rank=0, message=message) for message in messages)
        told = TrainBatch(protocol=PROTOCOL_VERSION, fence=self.fence, offset=0, next_offset=10, lines=lines)
        with self.units.begin(self.host.principal, training.RECORD, quiet=True) as unit:
            training.take(unit, self.attempt_id, told)

    def _judge(self) -> None:
        """Record a verdict that blames the program, and stops nothing."""
        found = Verdict(
            VerdictKind.HANG,
            "endless_python",
            (0,),
            "",
            "",
            Phase.STEP,
            1,
            "",
            Frame(f"{self.word}_function", f"/srv/{self.word}-script.py", 7),
            (f"{self.word}-evidence",),
            f"{self.word}-sentence",
        )
        with self.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
            loaded = lock_attempt(unit, self.attempt_id)
            row = record_verdict(unit, loaded, found, self.host.node_id, VerdictReaction.NONE)
        assert row is not None
        self.verdict_id = row.id

    def _cancel_another(self) -> None:
        second = _submit(self.units, self.owner, _spec(f"{self.word}-second"))
        with self.units.begin(self.owner, jobs.CANCEL) as unit:
            jobs.cancel(unit, second, reason=f"{self.word}-regret")

    def _report_readings(self) -> None:
        now_ms = to_ms(self.units.clock())
        told = report(1, now_ms, *(reading(uuid, temperature_c=50.0) for uuid in self.gpus))
        intake = Intake(self.units, limits=IntakeLimits(pause_s=0.001, waiting_per_node=1_000))
        heard: dict[int, Outcome] = {}
        intake.submit(IncomingReport(self.host.node_id, None, told, now_ms), partial(heard.__setitem__, 0))
        wait_until(lambda: bool(heard))
        intake.close()

    def _add_to_the_tenant(self) -> None:
        tenant_id = self.owner.tenant_id
        assert tenant_id is not None
        role = Role.TENANT_MEMBER
        with self.units.begin(OPERATOR, keys.CREATE) as unit:
            self.key_id = keys.create(unit, name=f"{self.word}-key", role=role, tenant_id=tenant_id).key.id
        self.secret_id = set_secret(self.units, SECRET_KEYS, tenant_id, f"{self.word}-secret", b"a value").id
        self.route_id, self.notification_id = self._make_a_route(tenant_id)
        with self.units.begin(OPERATOR, persons.CREATE) as unit:
            self.person_id = persons.create(unit, name=f"{self.word}-person", role=role, tenant_id=tenant_id).person.id
        self.bundle_digest = self._store_a_bundle()
        self.outputs_id = self._upload_outputs()
        with self.units.begin(OPERATOR, quotas.SET) as unit:
            quotas.set_quota(unit, tenant_id, "on_demand", Quota(ceiling=1), reason=f"{self.word}-ceiling")

    def _make_a_route(self, tenant_id: TenantId) -> tuple[str, str]:
        """Return a route with one notification, of a test."""
        document = {"name": f"{self.word}-route", "target": {"kind": "webhook", "url": f"https://{self.word}.example"}}
        admin = admin_of(tenant_id)
        sealed = sealing.seal_new(SECRET_KEYS, admin, RouteDefinition.model_validate(document))
        with self.units.begin(admin, routes.CREATE) as unit:
            route_id = routes.create(unit, sealed).id
        with self.units.begin(admin, routes.TEST) as unit:
            routes.test(unit, route_id)
        while sequence_once(self.units):
            pass
        while fan_out_once(self.units):
            pass
        with self.units.read() as session:
            found = session.scalars(select(Notification.id).where(Notification.route_id == route_id)).one()
        return route_id, found

    def _store_a_bundle(self) -> str:
        content = f"{self.word}-file".encode()
        entry = Entry("program", Kind.FILE, len(content), (digest_of(content),))
        with self.units.begin(self.owner, bundles.BEGIN) as unit:
            return bundles.begin(unit, reading_of(encode(Manifest(VERSION, (entry,))))).folder.digest

    def _upload_outputs(self) -> int:
        content = f"{self.word}-weights".encode()
        entry = Entry(f"{self.word}-model", Kind.FILE, len(content), (digest_of(content),))
        reading = reading_of(encode(Manifest(VERSION, (entry,))))
        at, fence, version = (self.attempt_id, "outputs", "final"), self.fence, PROTOCOL_VERSION
        with self.units.begin(self.host.principal, folder_uploads.BEGIN, quiet=True) as unit:
            begun = folder_uploads.begin(unit, *at, fence=fence, protocol=version, manifest=reading)
        taken = tuple(one.digest for one in begun.wanted)
        done = FolderUploadsRequest(protocol=version, fence=fence, digest=reading.digest, uploaded=taken)
        with self.units.begin(self.host.principal, folder_uploads.CONFIRM, quiet=True) as unit:
            folder_uploads.confirm(unit, *at, done)
        with self.units.read() as session:
            return session.scalars(select(JobOutput.id).where(JobOutput.job_id == self.job_id)).one()

    def _give_way(self, for_job: JobId) -> None:
        tenant_id = self.owner.tenant_id
        assert tenant_id is not None
        self.reclaim_id = ReclaimId(new_id("reclaim"))
        with self.units.begin(OPERATOR, ACTIVATE, quiet=True) as unit:
            third = unit.session.get_one(Job, for_job).tenant_id
            unit.session.add(
                Reclaim(
                    id=self.reclaim_id,
                    beneficiary_job_id=for_job,
                    beneficiary_tenant_id=third,
                    beneficiary_tier="reserved",
                    victim_attempt_id=self.attempt_id,
                    victim_job_id=self.job_id,
                    victim_tenant_id=tenant_id,
                    victim_tier="spot",
                    num_gpus=2,
                    state=ReclaimState.NOTIFIED,
                    reason=f"{self.word}-reclaim",
                    notice_s=3600.0,
                    notified_at=unit.now,
                    deadline_at=unit.now + timedelta(hours=1),
                    cost_gpu_s=240.0,
                    runner_up=None,
                )
            )

    def _break(self, gpu: GpuUuid) -> None:
        with self.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
            add_signal(unit, gpu)

    def _node_name(self) -> str:
        with self.units.read() as session:
            return session.get_one(Node, self.host.node_id).name

    def estate(self) -> Estate:
        tenant_id = self.owner.tenant_id
        assert tenant_id is not None
        with self.units.read() as session:
            evidence = session.scalars(select(EvidenceRow.id).where(EvidenceRow.gpu_uuid == self.gpus[0])).first()
            incident = session.scalars(select(Incident.id).where(Incident.subject_id == tenant_id)).first()
            cohort = session.get_one(Gpu, self.gpus[0]).cohort_key
            checkpoint = session.scalars(select(Checkpoint.id).where(Checkpoint.job_id == self.job_id)).one()
        assert evidence is not None, "the fault was judged"
        assert incident is not None, "more is held than the ceiling allows"
        own = {
            "job_id": self.job_id,
            "attempt_id": self.attempt_id,
            "key_id": self.key_id,
            "person_id": self.person_id,
            "secret_id": self.secret_id,
            "route_id": self.route_id,
            "notification_id": self.notification_id,
            "tenant_id": tenant_id,
            "reclaim_id": self.reclaim_id,
            "bundle": self.bundle_digest,
            "path:path": f"{self.word}-model",
            "checkpoint_id": checkpoint,
            "verdict_id": self.verdict_id,
        }
        of_the_fleet = {
            "uuid": self.gpus[0],
            "node_id": self.host.node_id,
            "burn_in_id": self.burn_in_id,
            "repair_id": self.repair_id,
            "cordon_id": self.cordon_id,
            "evidence_id": evidence,
            "incident_id": incident,
            "key": str(cohort),
        }
        of_the_outputs = {"outputs_id": str(self.outputs_id)}
        of_the_host = {"fence": str(self.fence), "boot_id": self.host.boot_id, "seq": str(self.host.seq + 1)}
        ids = {**own, **of_the_fleet, **of_the_host, **of_the_outputs, "word": self.word, "node": self._node_name()}
        secrets = {self.word, *own.values(), *self.gpus, self.host.node_id}
        return Estate(self.word, tenant_id, self.host, ids, frozenset(secrets))
