"""A fleet in use by spot jobs of one tenant, and a pending job of another tenant that a guarantee would entitle."""

from control.tenants import quotas
from muster.domain.ids import JobId
from scheduler.quota.tenancy import Quota
from tests.control.reclaim.stage import Stage
from tests.fleet_factory import OPERATOR

PAIR = {"nodes": 1, "gpus_per_node": 2}


def wait_for_a_guarantee(stage: Stage) -> JobId:
    """Fill three hosts of two GPUs by jobs of the tenant ``other``; return the pending job, which may use no GPU."""
    other = stage.add_tenant("other")
    for _ in range(3):
        stage.run("spot", shape=PAIR, by=other)
    stage.pass_time(1_900)
    with stage.units.begin(OPERATOR, quotas.SET) as unit:
        quotas.set_quota(unit, stage.fleet.tenant_id, "on_demand", Quota(ceiling=0), reason="none yet")
    waiting = stage.submit("on_demand", shape=PAIR, name="entitled")
    stage.cycle()
    return waiting
