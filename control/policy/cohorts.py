"""The cohort in a GPU's row: by the attributes of the active policy, whenever the GPU was enrolled."""

from collections.abc import Callable, Mapping

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from health.cohort.cohorts import Attribute, agreed_of, cohort_key, presumed
from muster.db.models import Gpu
from muster.domain.gpu.cohort_attributes import ENROLLED
from muster.domain.policy.health import CohortPolicy
from muster.domain.states import Standing

KeyOf = Callable[[Mapping[str, Attribute]], str]


def hold_policy(session: Session) -> None:
    """Prevent a change of the active policy until this transaction ends: it would not see GPUs enrolled here."""
    session.execute(text("LOCK TABLE policy_versions IN SHARE MODE"))


def attributes_of_gpu(gpu: Gpu) -> dict[str, Attribute]:
    return {**gpu.attributes, **{name: getattr(gpu, name) for name in ENROLLED}}


def keying(session: Session, policy: CohortPolicy) -> KeyOf:
    """Return a function from attributes to key. Unknown attributes are presumed from all enrolled, not retired GPUs."""
    alike = select(Gpu.model, Gpu.attributes, func.count()).where(Gpu.standing != Standing.RETIRED)
    groups = session.execute(alike.group_by(Gpu.model, Gpu.attributes)).all()
    agreed = agreed_of((model, attributes, num_gpus) for model, attributes, num_gpus in groups)

    def key_of(attributes: Mapping[str, Attribute]) -> str:
        return cohort_key(presumed(attributes, agreed.get(str(attributes.get("model")), {})), policy)

    return key_of


def lock_all(session: Session) -> None:
    """Lock every GPU, in the order of their UUIDs."""
    every = select(Gpu.uuid).order_by(Gpu.uuid).with_for_update(key_share=True).subquery()
    session.execute(select(func.count()).select_from(every))


def rekey(session: Session, policy: CohortPolicy) -> int:
    """Write the key of each GPU again. Return how many changed. The caller has stored the policy already."""
    lock_all(session)
    key_of = keying(session, policy)
    columns = [*(getattr(Gpu, name) for name in ENROLLED), Gpu.attributes]
    num_changed = 0
    for *values, told in session.execute(select(*columns).distinct()).all():
        key = key_of({**told, **dict(zip(ENROLLED, values, strict=True))})
        alike = [column == value for column, value in zip(columns, (*values, told), strict=True)]
        changed = (
            update(Gpu)
            .where(*alike, Gpu.cohort_key != key)
            .values(cohort_key=key, version=Gpu.version + 1)
            .execution_options(synchronize_session=False)
        )
        num_changed += session.execute(changed).rowcount  # type: ignore[attr-defined]  # a cursor's result
    return num_changed
