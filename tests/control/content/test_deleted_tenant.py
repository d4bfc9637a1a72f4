"""A tenant that is deleted while it stores content: what it has begun keeps it, and a removed one begins nothing."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from muster.domain.errors import ValidationFailedError
from muster.domain.stored_content import FolderState
from tests.control.content.conftest import Tenant, manifest
from tests.control.reclaim.stage import Stage

CODE = manifest(train=b"print('hello')", model=b"import torch")


def delete(stage: Stage, tenant: Tenant) -> None:
    with stage.units.engine.begin() as connection:
        connection.execute(text("DELETE FROM tenants WHERE id = :id"), {"id": tenant.principal.tenant_id})


def test_a_tenant_stays_while_anything_of_it_is_stored(stage: Stage) -> None:
    tenant = Tenant(stage.units, stage.add_tenant("globex"))
    first, *rest = (each.digest for each in tenant.begin(CODE).wanted)
    tenant.confirm(CODE.digest, first)
    with pytest.raises(IntegrityError, match=r"stored_|content_use"):
        delete(stage, tenant)
    assert tenant.confirm(CODE.digest, *rest).folder.state is FolderState.COMPLETE


def test_a_tenant_that_was_removed_begins_no_upload(stage: Stage, tenant: Tenant) -> None:
    gone = Tenant(stage.units, stage.add_tenant("globex"))
    delete(stage, gone)
    with pytest.raises(ValidationFailedError, match="there is no such tenant"):
        gone.begin(CODE)
    with pytest.raises(ValidationFailedError, match="there is no such tenant"):
        gone.confirm(CODE.digest)
    assert tenant.upload(CODE).folder.state is FolderState.COMPLETE, "others are not concerned"
