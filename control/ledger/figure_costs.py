"""Costs of epochs, for the figure store: of jobs that ended in an hour, by the ledger and the rate cards."""

from datetime import datetime
from typing import Final

from control.core.unit_of_work import UnitOfWork
from control.ledger.charges import Scope, charges
from control.ledger.figure_counts import ENDED_WITH_EPOCHS
from control.ledger.figure_rows import Group, Tally
from control.ledger.rates import active_rates
from ledger.bills import Line, epoch_cost, exactly_spent
from ledger.figures.hours import HOUR, hour_of
from muster.domain.ids import TenantId

FIGURE: Final = "cost_per_epoch"


def count_costs(unit: UnitOfWork, hour: datetime, tally: Tally) -> None:
    """Add the cost and the epochs of each job that ended in the hour and reported epochs.

    A job of which a part has no price, or that reported less than a thousandth of an epoch, is not counted. Corrections
    that the ledger makes after the last count of the hour are not in it.
    """
    if active_rates(unit.session) is None:
        return
    found = unit.session.execute(ENDED_WITH_EPOCHS, {"begins": hour, "ends": hour + HOUR}).all()
    if not found:
        return
    start = hour_of(min(row.created_at for row in found))
    every = charges(unit.session, Scope(job_ids=[row.job_id for row in found]), start, unit.now, now=unit.now)
    by_job: dict[str, list[Line]] = {}
    for line in every.every_line:
        by_job.setdefault(line.key.job_id, []).append(line)
    for row in found:
        spent = exactly_spent(by_job.get(row.job_id, ()))
        an_epoch = epoch_cost(spent, row.num_epochs)
        if spent is None or an_epoch is None:
            continue
        group = Group(TenantId(row.tenant_id), row.tier, row.job_class, row.site)
        tally.add(FIGURE, "money", group, total=float(spent), value=float(an_epoch))
        tally.add(FIGURE, "epochs", group, total=row.num_epochs)
