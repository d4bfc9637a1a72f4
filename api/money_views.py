"""Costs and statements as the JSON that callers see. Amounts are texts, as no number of JSON may hold money."""

from decimal import Decimal

from api.views import time_of
from control.ledger.budgets import Standing
from control.ledger.job_costs import JobCost, PlannedCost
from control.ledger.statements import Statement
from ledger.bills import Line, Sums
from muster.documents import money as documents
from muster.domain.amounts import gpu_hours
from muster.domain.principals import Principal


def planned_cost_view(cost: PlannedCost) -> documents.PlannedCost:
    return {
        "currency": cost.currency,
        "per_hour_least": str(cost.per_hour_least),
        "per_hour_most": str(cost.per_hour_most),
        "by_wall_time": text_of(cost.by_wall_time),
        "by_expected": text_of(cost.by_expected),
    }


def text_of(number: Decimal | None) -> str | None:
    """Return a number without an exponent."""
    return None if number is None else f"{number:f}"


def line_view(line: Line, decimals: int) -> documents.CostLine:
    return {
        "model": line.key.model,
        "tier": line.key.tier,
        "account": line.key.account.value,
        "from_at": time_of(line.key.from_at),
        "until_at": time_of(line.until_at),
        "gpu_hours": str(gpu_hours(line.num_ms)),
        "provisional_gpu_hours": str(gpu_hours(line.provisional_ms)),
        "credited_gpu_hours": str(gpu_hours(line.credited_ms)),
        "price_per_gpu_hour": text_of(line.price),
        "amount": text_of(line.amount(decimals)),
        "credit": text_of(line.credit(decimals)),
    }


def sums_view(found: Sums) -> documents.CostSums:
    return {
        "gpu_hours": str(gpu_hours(found.num_ms)),
        "provisional_gpu_hours": str(gpu_hours(found.provisional_ms)),
        "credited_gpu_hours": str(gpu_hours(found.credited_ms)),
        "unpriced_gpu_hours": str(gpu_hours(found.unpriced_ms)),
        "charged": f"{found.charged:f}",
        "credits": f"{found.credits:f}",
        "due": f"{found.due:f}",
    }


def job_cost_view(cost: JobCost) -> documents.JobCost:
    found = cost.charges
    return {
        "job_id": cost.job_id,
        "currency": None if found.rates is None else found.rates.currency,
        "counted_until": time_of(found.counted_until),
        "lines": [line_view(line, found.decimals) for line in found.lines],
        "running": [line_view(line, found.decimals) for line in found.running],
        "sums": sums_view(found.sums),
        "spent": f"{found.spent:f}",
        "step": cost.step,
        "tokens": cost.num_tokens,
        "epochs": cost.num_epochs,
        "checkpoints": cost.num_checkpoints,
        "per_step": text_of(cost.per(cost.step)),
        "per_million_tokens": text_of(cost.per_million_tokens),
        "per_epoch": text_of(cost.per_epoch),
        "per_checkpoint": text_of(cost.per(cost.num_checkpoints)),
    }


def budget_view(found: Standing, principal: Principal) -> documents.TenantBudget:
    """Return a budget. Author and reason are for principals that see every tenant."""
    row, is_shown = found.row, principal.sees_all_tenants
    return {
        "tenant_id": row.tenant_id,
        "amount": f"{row.amount.normalize():f}",
        "currency": row.currency,
        "window": row.window.value,
        "action": row.action.value,
        "shares": list(row.shares),
        "begins_at": time_of(found.start),
        "ends_at": time_of(found.end),
        "spent": f"{found.spent:f}",
        "share": found.share,
        "is_spent": found.is_spent,
        "unpriced_gpu_hours": str(gpu_hours(found.unpriced_ms)),
        "fault": found.fault or None,
        "set_at": time_of(row.set_at),
        "set_by": row.set_by if is_shown else None,
        "reason": row.reason if is_shown else None,
    }


def statement_view(found: Statement, tenant_id: str | None) -> documents.Statement:
    charges = found.charges
    return {
        "month": f"{charges.start:%Y-%m}",
        "begins_at": time_of(charges.start),
        "ends_at": time_of(charges.end),
        "tenant_id": tenant_id,
        "currency": None if charges.rates is None else charges.rates.currency,
        "decimals": charges.decimals,
        "is_final": not found.num_open,
        "open_hours": found.num_open,
        "revision": found.revision,
        "lines": [_statement_line(line, found) for line in charges.lines],
        "sums": sums_view(charges.sums),
    }


def _statement_line(line: Line, found: Statement) -> documents.StatementLine:
    key = line.key
    return {
        **line_view(line, found.charges.decimals),
        "tenant_id": key.tenant_id,
        "tenant_name": found.tenant_names.get(key.tenant_id),
        "job_id": key.job_id or None,
        "job_name": found.job_names.get(key.job_id),
        "num_ms": line.num_ms,
        "credited_ms": line.credited_ms,
        "provisional_ms": line.provisional_ms,
        "attempts": found.attempts.get(key, []),
        "credit_evidence": list(line.grounds),
    }
