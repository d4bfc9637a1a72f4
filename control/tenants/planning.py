"""The CPU time of an API process that plans and dry runs of one tenant take, held to ``limits.tenant``.

A plan reads and plans a whole fleet: 20 ms for a small one, a second for 100,000 GPUs. So its CPU time is counted, not
the request: the time that other tenants lose is the same on each fleet. A plan is charged once it is made, by what its
thread took, so a tenant may owe some of the next minute.

    limit 5 s a minute     a tenant that planned for 6 s just now owes 1 s
    its next plan          is refused for 1 / 5 of a minute, 12 s
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import thread_time
from typing import Final

from sqlalchemy.dialects.postgresql import insert

from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from control.policy.policies import active_policy
from muster.db.models import TenantPlanning
from muster.domain.errors import TenantLimitError
from muster.domain.ids import TenantId
from muster.domain.job.tenant_limits import planning_left_at, planning_refusal, require_planning
from muster.domain.principals import Principal, system_principal

CHARGE: Final = declare_action("tenant.planning")
AT_ONCE: Final = 4
"""Plans of one tenant at once in a process: none of them is charged before it ends."""
_PRINCIPAL: Final = system_principal("api")
_under_way: Counter[TenantId] = Counter()
_counting: Final = Lock()


@contextmanager
def planning(units: UnitOfWorkFactory, principal: Principal) -> Iterator[None]:
    """Make a plan within the limit of the principal's tenant. Operators, who have none, are not limited.

    Raises:
        TenantLimitError: the tenant's plans took their share of the CPU, or some of them are being made.
    """
    tenant_id = principal.tenant_id
    if tenant_id is None:
        yield
        return
    _require_left(units, tenant_id)
    with _one_of(tenant_id):
        began_s = thread_time()
        try:
            yield
        finally:
            _charge(units, tenant_id, thread_time() - began_s)


def _require_left(units: UnitOfWorkFactory, tenant_id: TenantId) -> None:
    with units.read() as session:
        limits = active_policy(session).limits.tenant
        row = session.get(TenantPlanning, tenant_id)
        if row is not None:
            require_planning(limits, planning_left_at(limits, row.left_s, row.at, units.clock()))


@contextmanager
def _one_of(tenant_id: TenantId) -> Iterator[None]:
    with _counting:
        if _under_way[tenant_id] >= AT_ONCE:
            raise _too_many()
        _under_way[tenant_id] += 1
    try:
        yield
    finally:
        with _counting:
            _under_way[tenant_id] -= 1
            if not _under_way[tenant_id]:
                del _under_way[tenant_id]


def _too_many() -> TenantLimitError:
    return planning_refusal(f"{AT_ONCE} plans or dry runs of the tenant are being made", 1)


def _charge(units: UnitOfWorkFactory, tenant_id: TenantId, used_s: float) -> None:
    with units.begin(_PRINCIPAL, CHARGE, quiet=True) as unit:
        limits = active_policy(unit.session).limits.tenant
        unused = {"left_s": float(limits.planning_s_per_minute), "at": unit.now}
        first = insert(TenantPlanning).values(tenant_id=tenant_id, **unused)
        unit.session.execute(first.on_conflict_do_nothing())
        row = unit.session.get_one(TenantPlanning, tenant_id, with_for_update=True)
        row.left_s = planning_left_at(limits, row.left_s, row.at, unit.now) - used_s
        row.at = max(row.at, unit.now)
