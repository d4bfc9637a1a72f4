"""Bundles: what is stored is not uploaded again, two at once are one, and a job has a complete bundle of its tenant."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from control.content import bundles, rows
from control.content.manifests import SHORT_BYTES, read_manifest, reading_of
from control.core.unit_of_work import retrying
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.domain.errors import ConflictError, NotFoundError, TenantLimitError, ValidationFailedError
from muster.domain.policy.document import Policy
from muster.domain.stored_content import FolderState, ObjectKind
from tests.control.content.conftest import Tenant, manifest
from tests.control.reclaim.stage import Stage
from tests.fleet_factory import OPERATOR

CODE = manifest(train=b"print('hello')", model=b"import torch", empty=b"")


def test_a_bundle_is_complete_when_all_of_it_is_confirmed(tenant: Tenant) -> None:
    begun = tenant.begin(CODE)
    assert begun.folder.state is FolderState.UPLOADING
    assert (begun.folder.num_bytes, begun.folder.num_files) == (26, 3)
    assert [each.kind for each in begun.wanted] == [ObjectKind.CHUNK, ObjectKind.CHUNK, ObjectKind.MANIFEST]
    assert begun.wanted[-1].digest == CODE.digest
    first, *rest = (each.digest for each in begun.wanted)
    assert tenant.confirm(CODE.digest, first).num_missing == 2
    again = tenant.begin(CODE)
    assert [each.digest for each in again.wanted] == rest, "an upload that was broken off continues where it was"
    done = tenant.confirm(CODE.digest, *rest)
    assert (done.folder.state, done.num_missing, list(done.wanted)) == (FolderState.COMPLETE, 0, [])
    assert tenant.begin(CODE).folder.state is FolderState.COMPLETE
    assert tenant.confirm(CODE.digest).folder.state is FolderState.COMPLETE


def test_of_a_changed_folder_the_changed_file_alone_is_uploaded(tenant: Tenant) -> None:
    tenant.upload(CODE)
    changed = manifest(train=b"print('hello again')", model=b"import torch", empty=b"")
    assert {each.digest for each in tenant.begin(changed).wanted} == {
        digest_of(b"print('hello again')"),
        changed.digest,
    }
    assert tenant.used_bytes() == 14 + 12 + 20 + CODE.manifest_bytes + changed.manifest_bytes


def test_a_bundle_is_deleted_in_several_statements_where_it_has_many_objects(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MOST_UNLINKED", 2)
    shared = manifest(b=b"b", e=b"e")
    tenant.upload(shared)
    tenant.upload(manifest(a=b"a", b=b"b", c=b"c", d=b"d", e=b"e"))
    tenant.delete(tenant.bundles()[0].folder.digest)
    assert tenant.used_bytes() == 2 + shared.manifest_bytes
    assert tenant.begin(shared).folder.state is FolderState.COMPLETE


def test_what_one_tenant_has_another_uploads_too(stage: Stage, tenant: Tenant) -> None:
    tenant.upload(CODE)
    other = Tenant(stage.units, stage.add_tenant("globex"))
    assert other.begin(CODE).num_missing == 3
    assert [found.folder.tenant_id for found in other.bundles()] == [other.principal.tenant_id]
    with pytest.raises(NotFoundError), stage.units.begin(other.principal, bundles.READ) as unit:
        bundles.show(unit, CODE.digest, tenant_id=tenant.principal.tenant_id)


def test_two_uploads_of_one_folder_at_once_are_one(tenant: Tenant) -> None:
    folders = [manifest(**{f"file{n}": b"%d" % n, "same": b"shared"}) for n in range(4)] * 4
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda one: retrying(lambda: tenant.upload(one)), folders))
    assert [found.folder.state for found in tenant.bundles()] == [FolderState.COMPLETE] * 4
    assert tenant.used_bytes() == 4 + 6 + sum(one.manifest_bytes for one in folders[:4])


def test_a_confirmation_of_what_the_bundle_does_not_have_changes_nothing(tenant: Tenant) -> None:
    tenant.begin(CODE)
    other = manifest(other=b"other")
    tenant.begin(other)
    assert tenant.confirm(CODE.digest, digest_of(b"other"), "0" * 64).num_missing == 3
    assert tenant.begin(other).num_missing == 2
    with pytest.raises(NotFoundError):
        tenant.confirm("0" * 64)


def test_limits_are_named_before_anything_is_stored(stage: Stage, tenant: Tenant) -> None:
    limits = {"bundle_bytes": 30, "bundle_files": 3, "tenant_bytes": 450}
    stage.set_policy(Policy.model_validate({"content": limits}))
    with pytest.raises(ValidationFailedError, match=r"31 B, and 30 B are accepted \(content\.bundle_bytes\)"):
        tenant.begin(manifest(large=b"x" * 31))
    with pytest.raises(ValidationFailedError, match=r"4 files, and 3 are accepted \(content\.bundle_files\)"):
        tenant.begin(manifest(a=b"a", b=b"b", c=b"", d=b""))
    tenant.upload(CODE)
    with pytest.raises(TenantLimitError, match=r"content\.tenant_bytes") as refused:
        tenant.begin(manifest(a=b"a" * 10, b=b"b" * 10, c=b"c" * 10))
    assert refused.value.faults[0].code == "tenant_bytes"
    tenant.begin(CODE)
    assert len(tenant.bundles()) == 1
    tenant.delete(CODE.digest)
    assert tenant.used_bytes() == 0
    tenant.begin(manifest(a=b"a" * 10, b=b"b" * 10, c=b"c" * 10))


def test_a_chunk_of_another_size_than_before_is_refused(tenant: Tenant) -> None:
    tenant.begin(CODE)
    forged = Manifest(VERSION, (Entry("x", Kind.FILE, 3, (digest_of(b"import torch"),)),))
    with pytest.raises(ValidationFailedError, match="has 3 bytes here, and 12 in another folder"):
        tenant.begin(reading_of(encode(forged)))


def test_a_job_has_a_complete_bundle_of_its_own_tenant(stage: Stage, tenant: Tenant) -> None:
    program = {"script": "train.py", "bundle": CODE.digest}
    with pytest.raises(ValidationFailedError, match=f"has no bundle {CODE.digest[:12]}") as unknown:
        stage.submit("on_demand", program=program)
    assert unknown.value.faults[0].pointer == "/program/bundle"
    tenant.begin(CODE)
    with pytest.raises(ValidationFailedError, match="is not complete"):
        stage.submit("on_demand", program=program)
    tenant.upload(CODE)
    with pytest.raises(ValidationFailedError, match="has no bundle"):
        stage.submit("on_demand", program=program, by=stage.add_tenant("globex"))
    job_id = stage.submit("on_demand", program=program)
    assert [found.num_live_jobs for found in tenant.bundles()] == [1]
    with pytest.raises(ConflictError, match=job_id):
        tenant.delete(CODE.digest)
    stage.cancel(job_id)
    tenant.delete(CODE.digest)
    assert tenant.bundles() == []
    with pytest.raises(ValidationFailedError, match="or was deleted"):
        stage.submit("on_demand", program=program)


def test_a_deletion_and_a_submission_at_once_never_leave_a_job_without_its_bundle(stage: Stage, tenant: Tenant) -> None:
    program = {"script": "train.py", "bundle": CODE.digest}

    def either(number: int) -> str:
        try:
            retrying(lambda: stage.submit("on_demand", program=program) if number % 2 else tenant.delete(CODE.digest))
        except (ConflictError, NotFoundError, ValidationFailedError) as refusal:
            return refusal.code
        return "submitted" if number % 2 else "deleted"

    for _ in range(5):
        tenant.upload(CODE)
        with ThreadPoolExecutor(4) as threads:
            outcomes = list(threads.map(either, range(4)))
        found = tenant.bundles()
        assert bool(found) == ("deleted" not in outcomes)
        if found:
            assert found[0].num_live_jobs > 0
            return


def test_an_operator_names_the_tenant(stage: Stage, tenant: Tenant) -> None:
    with stage.units.begin(OPERATOR, bundles.BEGIN) as unit:
        with pytest.raises(ValidationFailedError, match="an operator names the tenant"):
            bundles.begin(unit, CODE)
        bundles.begin(unit, CODE, tenant_id=stage.fleet.tenant_id)
    assert [found.folder.created_by for found in tenant.bundles()] == [OPERATOR.name]


def test_a_long_manifest_is_read_by_a_child_and_a_bad_one_is_refused() -> None:
    entries = tuple(Entry(f"{n:06}", Kind.FILE, 6, (digest_of(b"%06d" % n),)) for n in range(5_000))
    content = encode(Manifest(VERSION, entries))
    assert len(content) > SHORT_BYTES
    found = read_manifest(content)
    assert found == reading_of(content)
    assert (found.num_files, found.num_bytes, len(found.sizes), len(found.chunks)) == (5_000, 30_000, 5_000, 160_000)
    for bad in (
        b"{}",
        b"[1, []]x",
        b"[" * 100_000,
        b"[" * SHORT_BYTES * 2,
        content[:-2],
        content.replace(b"000001", b"../001"),
    ):
        with pytest.raises(ValidationFailedError):
            read_manifest(bad)


def test_a_job_without_a_bundle_is_stored_as_release_0_1_0_reads_it(stage: Stage, tenant: Tenant) -> None:
    plain = stage.fleet.job(stage.submit("on_demand"))
    assert "bundle" not in plain.spec["program"]
    tenant.upload(CODE)
    bundled = stage.fleet.job(stage.submit("on_demand", program={"script": "train", "bundle": CODE.digest}))
    assert bundled.spec["program"]["bundle"] == CODE.digest
