"""Jobs side by side as the JSON that callers see, with the reason of each figure that is missing."""

from decimal import Decimal
from typing import Final

from api.money_views import text_of
from control.ledger.job_comparisons import SAVES, ComparedJob
from ledger.accounts import Account
from muster.documents import money as documents
from muster.domain.amounts import gpu_hours

_LOST: Final = (Account.LOST, Account.RECLAIM_LOST, Account.REPLAYED, Account.SLOWED)
_PRICE_DIGITS: Final = 9
_TOKEN_DIGITS: Final = 2
NO_GPU: Final = "it has had no GPU yet"
NO_STEP: Final = "its program reports no step: `muster.train` does"
TOO_SHORT: Final = "the time that it reports of a step is too short for a rate"
NO_PACE: Final = "its program reports no pace: `muster.train` does, after its first steps"
NO_TOKENS: Final = "not each rank reports tokens: `run.report(loss=…, tokens=…)`"
NO_SAMPLES: Final = "not each rank reports samples: `run.sample_indices`, or `run.report(loss=…, samples=…)`"
NO_MFU: Final = "not each rank reports it: it needs `train.Work` and a GPU whose peak is known"
WITHIN: Final = "its ranks exchange within their passes, where it cannot be measured"
NO_RATES: Final = "no rate cards are set"
FREE: Final = "nothing was charged"
UNPRICED: Final = "no rate card holds for a part of its time"


def compared_job_view(found: ComparedJob) -> documents.ComparedJob:
    cost = found.cost
    rates, speed, spent, charged = cost.charges.rates, found.tokens_per_s, cost.exactly_spent, cost.exactly_charged
    view: documents.ComparedJob = {
        "job_id": found.job_id,
        "name": found.name,
        "state": found.state.value,
        "tier": found.tier,
        "gpus": found.num_gpus,
        "attempts": found.num_attempts,
        "reclaims": found.num_reclaims,
        "step": cost.step,
        "tokens": cost.num_tokens,
        "tokens_per_s": speed,
        "tokens_per_s_per_gpu": None if speed is None or not found.num_gpus else speed / found.num_gpus,
        "samples_per_s": found.samples_per_s,
        "step_p50_s": found.p50_s,
        "step_p95_s": found.p95_s,
        "mfu": found.shares.mfu,
        "communication_share": found.shares.communication,
        "loader_share": found.shares.loader,
        "goodput": found.share(Account.PRODUCTIVE),
        "lost_share": found.share(*_LOST),
        "checkpoint_share": found.share(*SAVES),
        "gpu_hours": str(gpu_hours(found.num_ms)),
        "currency": None if rates is None else rates.currency,
        "price_per_gpu_hour": _rounded(found.price_per_gpu_hour, _PRICE_DIGITS),
        "spent": text_of(spent),
        "credits": None if spent is None or charged is None else f"{spent - charged:f}",
        "per_million_tokens": text_of(cost.per_million_tokens),
        "tokens_per_unit": _rounded(found.tokens_per_unit, _TOKEN_DIGITS),
        "tokens_per_unit_while_training": _rounded(found.tokens_per_unit_while_training, _TOKEN_DIGITS),
        "missing": {},
    }
    view["missing"] = {name: why for name, why in _reasons(found).items() if view.get(name) is None}
    return view


def _rounded(number: Decimal | None, digits: int) -> str | None:
    return None if number is None else f"{number:.{digits}f}"


def _reasons(found: ComparedJob) -> dict[str, str]:
    """Return why each field that may be null would be."""
    pace = NO_PACE if found.shares.loader is None else ""
    no_rate = NO_STEP if found.p50_s is None else TOO_SHORT
    speed = NO_TOKENS if found.tokens_per_step is None else no_rate
    tokens = NO_TOKENS if found.cost.step else NO_STEP
    money = _no_price(found) or ("" if found.num_ms else NO_GPU)
    bought = money or (FREE if not found.cost.exactly_spent else "")
    return {
        "gpus": NO_GPU,
        "step": NO_STEP,
        "tokens": tokens,
        "tokens_per_s": speed,
        "tokens_per_s_per_gpu": speed if found.tokens_per_s is None else NO_GPU,
        "samples_per_s": NO_SAMPLES if found.samples_per_step is None else no_rate,
        "step_p50_s": NO_STEP,
        "step_p95_s": NO_STEP,
        "mfu": pace or NO_MFU,
        "communication_share": pace or WITHIN,
        "loader_share": NO_PACE,
        **dict.fromkeys(("goodput", "lost_share", "checkpoint_share"), NO_GPU),
        "currency": NO_RATES,
        "price_per_gpu_hour": money,
        **dict.fromkeys(("spent", "credits"), money),
        "per_million_tokens": _no_price(found) or tokens,
        "tokens_per_unit": bought or tokens,
        "tokens_per_unit_while_training": money or (FREE if not found.price_per_gpu_hour else "") or speed,
    }


def _no_price(found: ComparedJob) -> str:
    if found.cost.charges.rates is None:
        return NO_RATES
    return UNPRICED if found.cost.exactly_spent is None else ""
