"""A host gets addresses of the bundle that it is to run at this moment, and of no other."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import bundles, protocol
from control.placement.pending_jobs import waiting_jobs
from control.policy.policies import ACTIVATE, store_policy
from control.training import training
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.db.models import Checkpoint, PlacementPreflight
from muster.domain.errors import NoSuchBundleError, StaleFenceError, UpgradeRequiredError
from muster.domain.ids import AttemptId, JobId, NodeId
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.times import to_ms
from muster.store.faults import StoreError
from muster.store.key_file import KeyFile
from muster.store.objects import ObjectStore
from muster.wire.content import BundleReport, DownloadsAnswer, DownloadsRequest
from muster.wire.host import HOST_CAPABILITIES, PROTOCOL_VERSION, ClaimRequest, HeartbeatRequest
from muster.wire.training import TrainBatch, TrainLine
from tests.fleet_factory import OPERATOR, Fleet, enrol_host, make_fleet
from tests.patient import patient_engine
from tests.stored_bundles import store_bundle

CHUNK = digest_of(b"print()")
MANIFEST = encode(Manifest(VERSION, (Entry("train.py", Kind.FILE, 7, (CHUNK,)),)))
BUNDLE = digest_of(MANIFEST)
PROGRAM = {"script": "train.py", "bundle": BUNDLE}


@pytest.fixture
def fleet(database_url: str) -> Iterator[Fleet]:
    with patient_engine(database_url) as engine:
        made = make_fleet(UnitOfWorkFactory(engine))
        store_bundle(made.units, made.tenant, MANIFEST)
        yield made


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "key").write_text("tester secret\n")
    (tmp_path / "key").chmod(0o600)
    return ObjectStore("https://store.example", "content", KeyFile(tmp_path / "key"), region="us-east-1")


def beat(fleet: Fleet) -> None:
    request = HeartbeatRequest(
        protocol=PROTOCOL_VERSION, boot_id="boot-1", seq=next(fleet.beats), capabilities=HOST_CAPABILITIES
    )
    with fleet.units.begin(fleet.node_principal, protocol.HEARTBEAT, quiet=True) as unit:
        protocol.heartbeat(unit, request)


def placed(fleet: Fleet) -> tuple[JobId, AttemptId, int]:
    beat(fleet)
    job_id = fleet.submit(program=PROGRAM)
    fleet.cycle()
    attempt = fleet.attempts(job_id)[0].attempt
    return job_id, attempt.id, attempt.fence


def claim(fleet: Fleet, attempt_id: AttemptId, fence: int) -> None:
    request = ClaimRequest(
        protocol=PROTOCOL_VERSION, boot_id="boot-1", fence=fence, nonce="n", capabilities=HOST_CAPABILITIES
    )
    with fleet.units.begin(fleet.node_principal, protocol.CLAIM) as unit:
        answer = protocol.claim(unit, attempt_id, request)
    assert answer.order is not None
    assert answer.order.bundle is not None
    assert (answer.order.bundle.digest, answer.order.bundle.tenant_id) == (BUNDLE, fleet.tenant_id)


def ask(
    fleet: Fleet,
    part_id: str,
    fence: int,
    store: ObjectStore | None,
    *chunks: str,
    bundle: str = BUNDLE,
    protocol_: int = 1,
) -> DownloadsAnswer:
    request = DownloadsRequest(protocol=protocol_, fence=fence, bundle=bundle, chunks=chunks)
    with fleet.units.begin(fleet.node_principal, bundles.DOWNLOADS, quiet=True) as unit:
        return bundles.downloads(unit, part_id, request, store)


def test_a_claimed_attempt_gets_its_tenants_objects(fleet: Fleet, store: ObjectStore) -> None:
    _, attempt_id, fence = placed(fleet)
    with pytest.raises(StaleFenceError):
        ask(fleet, attempt_id, fence, store)
    claim(fleet, attempt_id, fence)
    answer = ask(fleet, attempt_id, fence, store, CHUNK)
    own = f"https://store.example/content/tenants/{fleet.tenant_id}"
    assert answer.manifest.url.startswith(f"{own}/manifests/{BUNDLE}?X-Amz-")
    assert [each.url.partition("?")[0] for each in answer.chunks] == [f"{own}/chunks/{CHUNK[:2]}/{CHUNK}"]
    with pytest.raises(StoreError, match="no content store is configured"):
        ask(fleet, attempt_id, fence, None)


def test_no_other_host_fence_bundle_or_protocol_gets_one(fleet: Fleet, store: ObjectStore) -> None:
    job_id, attempt_id, fence = placed(fleet)
    claim(fleet, attempt_id, fence)
    other = replace(fleet, node_id=enrol_host(fleet.units, "beta"))
    refused: list[tuple[type[Exception], Callable[[], object]]] = [
        (StaleFenceError, lambda: ask(other, attempt_id, fence, store)),
        (StaleFenceError, lambda: ask(fleet, attempt_id, fence - 1, store)),
        (StaleFenceError, lambda: ask(fleet, f"look-1-{job_id}", 1, store)),
        (StaleFenceError, lambda: ask(fleet, "att_gone", fence, store)),
        (NoSuchBundleError, lambda: ask(fleet, attempt_id, fence, store, bundle=CHUNK)),
        (NoSuchBundleError, lambda: ask(fleet, attempt_id, fence, store, CHUNK, BUNDLE)),
        (UpgradeRequiredError, lambda: ask(fleet, attempt_id, fence, store, protocol_=2)),
    ]
    for kind, call in refused:
        with pytest.raises(kind):
            call()
    fleet.cancel(job_id)
    fleet.reconcile()


def test_a_preflight_gets_it_while_it_is_open(fleet: Fleet, store: ObjectStore) -> None:
    with fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(dispatch=DispatchPolicy(preflight_from_nodes=1)), reason="a test")
    beat(fleet)
    job_id = fleet.submit(program=PROGRAM)
    fleet.cycle()
    with fleet.units.read() as session:
        look = session.get_one(PlacementPreflight, job_id)
        part_id, number = look.preflight_id, look.number
    assert ask(fleet, part_id, number, store, CHUNK).chunks[0].url
    other = replace(fleet, node_id=enrol_host(fleet.units, "beta"))
    for asking, name, fence in ((other, part_id, number), (fleet, part_id, number + 1), (fleet, f"look-9-{job_id}", 1)):
        with pytest.raises(StaleFenceError):
            ask(asking, name, fence, store)
    fleet.cancel(job_id)
    with pytest.raises(StaleFenceError):
        ask(fleet, part_id, number, store)


def hold(fleet: Fleet, *digests: str, tenant_id: str | None = None) -> None:
    held = tuple(f"{tenant_id or fleet.tenant_id}/{digest}" for digest in digests)
    with fleet.units.begin(fleet.node_principal, bundles.HOLD, quiet=True) as unit:
        bundles.hold(unit, BundleReport(protocol=PROTOCOL_VERSION, bundles=held))


def holders(fleet: Fleet) -> frozenset[NodeId]:
    with fleet.units.read() as session:
        [waiting] = waiting_jobs(session)
    return waiting.bundle_holders


def test_the_planner_knows_which_hosts_hold_a_jobs_bundle(fleet: Fleet) -> None:
    other = replace(fleet, node_id=enrol_host(fleet.units, "beta"))
    fleet.submit(program=PROGRAM)
    assert holders(fleet) == frozenset()
    hold(fleet, CHUNK, BUNDLE)
    hold(other, CHUNK)
    assert holders(fleet) == {fleet.node_id}
    hold(other, BUNDLE, CHUNK, BUNDLE)
    assert holders(fleet) == {fleet.node_id, other.node_id}
    hold(fleet)
    assert holders(fleet) == {other.node_id}
    hold(other, BUNDLE, tenant_id="ten_other")
    assert holders(fleet) == frozenset(), "another tenant's copy is of no use to this one"


def test_of_two_equal_hosts_the_one_that_holds_it_gets_the_job(fleet: Fleet) -> None:
    other = replace(fleet, node_id=enrol_host(fleet.units, "beta"))
    for one in (fleet, other):
        beat(one)
    last = max(fleet.node_id, other.node_id)
    hold(replace(fleet, node_id=last), BUNDLE)
    job_id = fleet.submit(program=PROGRAM, shape={"gpus_per_node": 2})
    fleet.cycle()
    [host] = fleet.attempts(job_id)[0].hosts
    assert host.part.node_id == last


@pytest.mark.parametrize("reported", [{"code_sha256": "c" * 64, "bundle": "f" * 64}, {"code_sha256": "c" * 64}, None])
def test_each_checkpoint_has_the_jobs_own_bundle_in_its_lineage(fleet: Fleet, reported: dict[str, str] | None) -> None:
    _, attempt_id, fence = placed(fleet)
    claim(fleet, attempt_id, fence)
    told = {"type": "checkpoint", "step": 1, "generation": f"step-00000001/gen-{fence}", "status": "committed"}
    at_ms = to_ms(fleet.units.clock())
    message = {**told, "bytes": 10, "at_unix_ms": at_ms, "manifest_sha256": "a" * 64, "lineage": reported}
    line = TrainLine(at_ms=at_ms, rank=0, message=message)
    batch = TrainBatch(protocol=PROTOCOL_VERSION, fence=fence, offset=0, next_offset=9, lines=(line,))
    with fleet.units.begin(fleet.node_principal, training.RECORD, quiet=True) as unit:
        assert training.take(unit, attempt_id, batch).taken == 1
    with fleet.units.read() as session:
        lineage = session.scalars(select(Checkpoint)).one().manifest["lineage"]
    assert lineage["bundle"] == BUNDLE
    assert lineage["code_sha256"] == (None if reported is None else "c" * 64)
