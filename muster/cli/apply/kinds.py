"""Documents that ``muster apply`` takes: a kind with a version, and its fields.

A document is its whole object: a field that it leaves out has its default, and the differences show that.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from muster.domain.residency import SiteNames, StoreNames
from muster.domain.strict import Name, StrictModel, Text

VERSION: Final = 1
Gpus = Annotated[int, Field(ge=0, le=1_000_000)]


class ResidencyDocument(StrictModel):
    """A residency rule. ``sites``: of its jobs, ``stores``: of its data; None: no restriction by that."""

    sites: SiteNames | None = None
    stores: StoreNames | None = None

    @model_validator(mode="after")
    def _restricts(self) -> Self:
        if self.sites is None and self.stores is None:
            raise ValueError("has `sites`, `stores` or both; leave `residency` out for none")
        return self

    @property
    def rule(self) -> dict[str, list[str] | None]:
        """The rule, as the control plane shows it."""
        return {
            "sites": None if self.sites is None else sorted(set(self.sites)),
            "stores": None if self.stores is None else sorted(set(self.stores)),
        }


class TenantDocument(StrictModel):
    """A tenant. ``under``: the name of its department; None: of none. ``weight``: its share there.

    ``residency``: its own residency rule; None: it has none.
    """

    kind: Literal["tenant"]
    version: Literal[1]
    name: Name
    under: Name | None = None
    weight: Annotated[float, Field(ge=0.001, le=1_000_000, strict=False)] = 1.0
    residency: ResidencyDocument | None = None

    @property
    def title(self) -> str:
        return self.name


class QuotaDocument(StrictModel):
    """A quota of the tenant of that name in a tier; None is no limit."""

    kind: Literal["quota"]
    version: Literal[1]
    tenant: Name
    tier: Name
    guaranteed_gpus: Gpus = 0
    borrowable_gpus: Gpus | None = None
    ceiling_gpus: Gpus | None = None

    @property
    def title(self) -> str:
        return f"{self.tenant} in {self.tier}"

    @property
    def limits(self) -> dict[str, int | None]:
        """The three numbers."""
        return {
            "guaranteed_gpus": self.guaranteed_gpus,
            "borrowable_gpus": self.borrowable_gpus,
            "ceiling_gpus": self.ceiling_gpus,
        }

    @model_validator(mode="after")
    def _guarantee_is_within_its_ceiling(self) -> Self:
        if self.ceiling_gpus is not None and self.guaranteed_gpus > self.ceiling_gpus:
            numbers = f"`guaranteed_gpus` {self.guaranteed_gpus} is more than `ceiling_gpus` {self.ceiling_gpus}"
            raise ValueError(numbers)
        return self


class CordonDocument(StrictModel):
    """A cordon on one node or GPU; its place and reason identify it. ``until`` None: until it is released."""

    kind: Literal["cordon"]
    version: Literal[1]
    node: Text | None = None
    gpu: Text | None = None
    reason: Annotated[Text, Field(min_length=1, max_length=500)]
    until: Annotated[AwareDatetime, Field(strict=False)] | None = None

    @property
    def title(self) -> str:
        return f"on {self.node or self.gpu}: {self.reason}"

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.node is None) == (self.gpu is None):
            raise ValueError("takes `node` or `gpu`, one of them")
        return self


class PolicyDocument(StrictModel):
    """The policy. ``document``: as `muster policy activate` takes it."""

    kind: Literal["policy"]
    version: Literal[1]
    document: dict[str, Any]

    @property
    def title(self) -> str:
        return "the active version"


class RatesDocument(StrictModel):
    """The rate cards. ``document``: whole, as `muster rates set` takes it. ``corrects_past``: as its --correct-past."""

    kind: Literal["rates"]
    version: Literal[1]
    document: dict[str, Any]
    corrects_past: bool = False

    @property
    def title(self) -> str:
        return "the active version"


Document = TenantDocument | QuotaDocument | CordonDocument | PolicyDocument | RatesDocument
DOCUMENT_KINDS: Final[Mapping[str, type[Document]]] = {
    "policy": PolicyDocument,
    "rates": RatesDocument,
    "tenant": TenantDocument,
    "quota": QuotaDocument,
    "cordon": CordonDocument,
}
"""In the order in which they are applied: a tier comes before its prices and quotas, a tenant before its quotas."""
