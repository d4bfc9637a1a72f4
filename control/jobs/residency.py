"""A job against the residency rule of its tenant, before it is accepted: what it names must be within the rule."""

from collections.abc import Iterator

from sqlalchemy.orm import Session

from control.content.residency import CODE, require_permitted
from muster.db.queries.residency import residency_of_tenant
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.residency import SITE_LABEL, StorePlace, site_words


def require_residency(session: Session, spec: JobSpec, tenant_id: TenantId, store: StorePlace | None) -> None:
    """Require that the job's sites, its store of checkpoints and the content store are within the rule.

    ``store``: the content store of this control plane; None: there is none.

    Raises ValidationFailedError: the rule excludes one of them.
    """
    rule = residency_of_tenant(session, tenant_id)
    if not rule:
        return
    named = spec.node_labels.required.get(SITE_LABEL)
    if named is not None and rule.sites is not None and rule.sites.isdisjoint(named):
        detail = f"{site_words(named)} is outside its tenant's residency rule, which permits {rule.words()}"
        raise ValidationFailedError.at(f"/node_labels/required/{SITE_LABEL}", CODE, detail)
    refusal = None if spec.checkpoint.store is None else rule.checkpoint_refusal(spec.checkpoint.store)
    if refusal is not None:
        raise ValidationFailedError.at("/checkpoint/store", CODE, refusal)
    for pointer in _parts_in_the_store(spec):
        require_permitted(session, tenant_id, store, pointer)


def _parts_in_the_store(spec: JobSpec) -> Iterator[str]:
    if spec.program.bundle is not None:
        yield "/program/bundle"
    if spec.program.git is not None:
        yield "/program/git"
    if spec.program.environment is not None:
        yield "/program/environment"
    if spec.outputs:
        yield "/outputs"
