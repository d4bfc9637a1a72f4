"""Jobs side by side as the JSON that callers see, with the reason of each figure that is missing."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from api.money_views import text_of
from control.ledger.job_comparisons import SAVES, ComparedJob
from ledger.accounts import Account
from muster.documents import money as documents
from muster.domain.amounts import gpu_hours

_LOST: Final = (Account.LOST, Account.RECLAIM_LOST, Account.REPLAYED, Account.SLOWED)
_NINE: Final = Decimal("1e-9")
_HUNDREDTH: Final = Decimal("0.01")
NO_GPU: Final = "it has had no GPU yet"
NO_STEP: Final = "its program reports no step: `muster.train` does"
NO_PACE: Final = "its program reports no pace: `muster.train` does, after its first steps"
NO_TOKENS: Final = "not each rank reports tokens: `run.report(loss=…, tokens=…)`"
NO_SAMPLES: Final = "not each rank reports samples: `run.sample_indices`, or `run.report(loss=…, samples=…)`"
NO_MFU: Final = "not each rank reports it: it needs `train.Work` and a GPU whose peak is known"
WITHIN: Final = "its ranks exchange within their passes, where it cannot be measured"
NO_RATES: Final = "no rate cards are set"
UNPRICED: Final = "no rate card holds for a part of its time"


def compared_job_view(found: ComparedJob) -> documents.ComparedJob:
    cost = found.cost
    rates, speed, spent, charged = cost.charges.rates, found.tokens_per_s, cost.exactly_spent, cost.exactly_charged
    return {
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
        "price_per_gpu_hour": _rounded(found.price_per_gpu_hour, _NINE),
        "spent": text_of(spent),
        "credits": None if spent is None or charged is None else f"{spent - charged:f}",
        "per_million_tokens": text_of(cost.per_million_tokens),
        "tokens_per_unit": _rounded(found.tokens_per_unit, _HUNDREDTH),
        "tokens_per_unit_while_training": _rounded(found.tokens_per_unit_while_training, _HUNDREDTH),
        "missing": dict(_missing(found)),
    }


def _rounded(number: Decimal | None, to: Decimal) -> str | None:
    return None if number is None else text_of(number.quantize(to))


def _missing(found: ComparedJob) -> Iterator[tuple[str, str]]:
    """Yield each field that is null, with the reason."""
    has_pace = found.shares.loader is not None
    no_step = NO_STEP if found.p50_s is None else ""
    no_tokens = NO_TOKENS if found.tokens_per_step is None else ""
    no_gpu = "" if found.num_ms else NO_GPU
    no_price = _no_price(found)
    reasons = {
        "gpus": "" if found.num_gpus else NO_GPU,
        "step": NO_STEP if found.cost.step is None else "",
        "tokens": NO_TOKENS if found.cost.num_tokens is None else "",
        "tokens_per_s": no_tokens or no_step,
        "tokens_per_s_per_gpu": no_tokens or no_step or no_gpu,
        "samples_per_s": (NO_SAMPLES if found.samples_per_step is None else "") or no_step,
        "step_p50_s": no_step,
        "step_p95_s": no_step,
        "mfu": "" if found.shares.mfu is not None else NO_MFU if has_pace else NO_PACE,
        "communication_share": "" if found.shares.communication is not None else WITHIN if has_pace else NO_PACE,
        "loader_share": "" if has_pace else NO_PACE,
        **dict.fromkeys(("goodput", "lost_share", "checkpoint_share"), "" if any(found.accounts.values()) else NO_GPU),
        "price_per_gpu_hour": no_price or no_gpu,
        **dict.fromkeys(("spent", "credits"), no_price),
        "per_million_tokens": no_price or no_tokens or no_step,
        "tokens_per_unit": no_price or no_gpu or no_tokens or no_step,
        "tokens_per_unit_while_training": no_price or no_gpu or no_tokens or no_step,
    }
    yield from ((name, why) for name, why in reasons.items() if why)


def _no_price(found: ComparedJob) -> str:
    if found.cost.charges.rates is None:
        return NO_RATES
    return UNPRICED if found.cost.exactly_spent is None else ""
