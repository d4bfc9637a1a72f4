"""Statements as CSV: one file of our own columns, one by FinOps FOCUS 1.0."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from muster.documents.csv_lines import line_of

PLAIN: Final = (
    *("tenant_id", "tenant_name", "job_id", "job_name", "model", "tier", "account", "from_at", "until_at"),
    *("num_ms", "credited_ms", "gpu_hours", "provisional_gpu_hours", "credited_gpu_hours", "price_per_gpu_hour"),
    *("amount", "credit", "attempts", "credit_evidence"),
)
FOCUS: Final = (
    *("AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency"),
    *("BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription"),
    *("ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart", "CommitmentDiscountCategory"),
    *("CommitmentDiscountId", "CommitmentDiscountName", "CommitmentDiscountStatus", "CommitmentDiscountType"),
    *("ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuer"),
    *("ListCost", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "Provider", "Publisher"),
    *("RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName"),
    *("SkuId", "SkuPriceId", "SubAccountId", "SubAccountName", "Tags"),
)
_UNIT: Final = "Hours"


def plain_csv(statement: Mapping[str, Any]) -> str:
    """Return the lines of a statement. An unpriced line has an empty amount."""
    return _csv(PLAIN, map(_joined, statement["lines"]))


def _joined(line: Mapping[str, Any]) -> dict[str, Any]:
    return {**line, **{name: " ".join(line[name]) for name in ("attempts", "credit_evidence")}}


def focus_csv(statement: Mapping[str, Any], provider: str) -> str:
    """Return the priced lines of a statement by FOCUS 1.0: a row of use, and one of what is given back.

    Unpriced lines have no cost, which FOCUS requires: they are left out.
    """
    return _csv(FOCUS, (row for line in statement["lines"] for row in _focus_rows(statement, line, provider)))


def num_unpriced(statement: Mapping[str, Any]) -> int:
    return sum(line["amount"] is None for line in statement["lines"])


def _csv(columns: tuple[str, ...], rows: Iterator[Mapping[str, Any]]) -> str:
    lines = (line_of(columns), *(line_of([row.get(name) for name in columns]) for row in rows))
    return "".join(f"{line}\n" for line in lines)


def _focus_rows(statement: Mapping[str, Any], line: Mapping[str, Any], provider: str) -> Iterator[dict[str, Any]]:
    if line["amount"] is None:
        return
    use = _focus_row(statement, line, provider)
    yield use
    if Decimal(line["credit"]):
        credit, hours = _decimal(line["credit"]), line["credited_gpu_hours"]
        words = f"given back: {hours} GPU-hours of {line['account']} by faults of the fleet"
        none = dict.fromkeys(("ConsumedQuantity", "ConsumedUnit", "PricingCategory"), "")
        costs = dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), credit)
        yield {**use, **none, **costs, "ChargeCategory": "Credit", "ChargeDescription": words, "PricingQuantity": hours}


def _focus_row(statement: Mapping[str, Any], line: Mapping[str, Any], provider: str) -> dict[str, Any]:
    sku, price = f"{line['model']}/{line['tier']}", line["price_per_gpu_hour"]
    amount = _decimal(line["amount"])
    return {
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), amount),
        **dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), _decimal(price)),
        **dict.fromkeys(("ConsumedQuantity", "PricingQuantity"), line["gpu_hours"]),
        **dict.fromkeys(("ConsumedUnit", "PricingUnit"), _UNIT),
        **dict.fromkeys(("InvoiceIssuer", "Provider", "Publisher"), provider),
        **dict.fromkeys(("BillingAccountId", "SubAccountId"), line["tenant_id"]),
        **dict.fromkeys(("BillingAccountName", "SubAccountName"), line["tenant_name"] or line["tenant_id"]),
        "BillingCurrency": statement["currency"],
        "BillingPeriodStart": statement["begins_at"],
        "BillingPeriodEnd": statement["ends_at"],
        "ChargeCategory": "Usage",
        "ChargeDescription": f"{line['model']} in {line['tier']}: {line['account']}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": line["from_at"],
        "ChargePeriodEnd": line["until_at"],
        "PricingCategory": "Standard",
        "ResourceId": line["job_id"],
        "ResourceName": line["job_name"] or line["job_id"],
        "ResourceType": "Job",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "GPU training",
        "SkuId": sku,
        "SkuPriceId": f"{sku}@{price}",
        "Tags": f'{{"account": "{line["account"]}", "tier": "{line["tier"]}"}}',
    }


def _decimal(number: str) -> str:
    """Return a number with a point in it: a column of whole numbers is none of decimals to FOCUS."""
    return number if "." in number else f"{number}.0"
