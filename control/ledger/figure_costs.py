"""What epochs cost, for the figure store: of jobs that ended in an hour, by the ledger and the rate cards."""

from datetime import datetime
from typing import Final

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork
from control.ledger.figure_counts import ENDED_WITH_EPOCHS
from control.ledger.figure_rows import Group, Tally
from control.ledger.job_costs import cost_until_now
from control.ledger.rates import active_rates
from ledger.figures.hours import HOUR
from muster.db.models import Job
from muster.domain.ids import TenantId

FIGURE: Final = "cost_per_epoch"


def count_costs(unit: UnitOfWork, hour: datetime, tally: Tally) -> None:
    """Add the cost and the epochs of each job that ended in the hour and reported epochs.

    A job of which a part has no price, or that reported less than a thousandth of an epoch, is not counted. The ledger
    closes an hour no later than the figures do, so the last count has what the bill has.
    """
    if active_rates(unit.session) is None:
        return
    found = unit.session.execute(ENDED_WITH_EPOCHS, {"begins": hour, "ends": hour + HOUR}).all()
    jobs = {job.id: job for job in unit.session.scalars(select(Job).where(Job.id.in_([row.job_id for row in found])))}
    for row in found:
        cost = cost_until_now(unit, jobs[row.job_id])
        if cost.exactly_spent is None or cost.num_epochs is None or cost.per_epoch is None:
            continue
        group = Group(TenantId(row.tenant_id), row.tier, row.job_class, row.site)
        tally.add(FIGURE, "money", group, total=float(cost.exactly_spent), value=float(cost.per_epoch))
        tally.add(FIGURE, "epochs", group, total=cost.num_epochs)
