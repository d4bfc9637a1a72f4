"""A scenario's parts other than jobs: nodes and their places, GPUs that are not sound, tenants and quotas."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, field_validator, model_validator

from muster.domain.gpu.rails import NO_RAILS, RAILS_LABEL, rails_of_label
from muster.domain.states import Contact, Standing
from muster.domain.strict import Name, Printable, StrictModel

_RANGE: Final = re.compile(r"([^\[\]]*)\[(\d{1,9})-(\d{1,9})\]")
MOST_NODES: Final = 100_000
MOST_GPUS: Final = 64
"""The most GPUs of a node."""
Gpus = Annotated[int, Field(ge=0, le=1_000_000)]


class Nodes(StrictModel):
    """Nodes of a kind.

    ``names``: one, or a run of them such as ``a[0-3]``. ``path``: its domains, one a level; empty: unknown.
    ``attributes``: their labels. ``domain`` is another word for the path: ``A``, or ``block-1/A``, or a list.
    """

    OTHER_KEYS: ClassVar[tuple[str, ...]] = ("domain",)

    names: Printable
    path: tuple[Printable, ...] = Field(default=(), strict=False)
    gpus: Annotated[int, Field(ge=1, le=MOST_GPUS)] = 8
    model: Printable = "h100"
    attributes: dict[Name, Printable] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _domain_is_a_path(cls, text: Any) -> Any:
        if not isinstance(text, dict) or "domain" not in text:
            return text
        if "path" in text:
            raise ValueError("has both path and domain: give one of them")
        rest = {name: value for name, value in text.items() if name != "domain"}
        domain = text["domain"]
        return {**rest, "path": domain.split("/") if isinstance(domain, str) else domain}

    @field_validator("names")
    @classmethod
    def _range_has_nodes(cls, names: str) -> str:
        found = _RANGE.fullmatch(names)
        if found is None and ("[" in names or "]" in names):
            raise ValueError(f"{names} is no range: a range of nodes is written a[0-3], with the brackets at the end")
        if found is not None and int(found.group(3)) < int(found.group(2)):
            stem, first, last = found.groups()
            raise ValueError(f"{names} has no node: the lower number comes first, as in {stem}[{last}-{first}]")
        return names

    @field_validator("attributes")
    @classmethod
    def _rails_are_some(cls, attributes: dict[str, str]) -> dict[str, str]:
        rails_of_label(attributes.get(RAILS_LABEL, NO_RAILS))
        return attributes

    @model_validator(mode="after")
    def _each_gpu_has_its_rail(self) -> Self:
        rails = rails_of_label(self.attributes.get(RAILS_LABEL, NO_RAILS))
        if rails and len(rails) != self.gpus:
            raise ValueError(
                f"attributes.{RAILS_LABEL} has the rails of {len(rails)} GPUs, and gpus of {self.names} is "
                f"{self.gpus}: give one for each by slot, or `{NO_RAILS}`"
            )
        return self

    def domains_of(self, text: str) -> Iterator[str]:
        """Yield its domains that match a name, or a path from the widest level on."""
        paths = ["/".join(self.path[: depth + 1]) for depth in range(len(self.path))]
        yield from (path for path, name in zip(paths, self.path, strict=True) if text in (path, name))

    @property
    def number(self) -> int:
        found = _RANGE.fullmatch(self.names)
        return 1 if found is None else int(found.group(3)) - int(found.group(2)) + 1

    def each(self) -> Iterator[str]:
        found = _RANGE.fullmatch(self.names)
        if found is None:
            yield self.names
            return
        stem, first, last = found.group(1), int(found.group(2)), int(found.group(3))
        yield from (f"{stem}{number}" for number in range(first, last + 1))


class Topology(StrictModel):
    """The tree of the fleet. ``levels``: names of its levels between fleet and node, widest first."""

    levels: tuple[Name, ...] = Field(default=("rack",), strict=False)
    nodes: tuple[Nodes, ...] = Field(min_length=1, strict=False)

    @model_validator(mode="after")
    def _are_not_too_many(self) -> Self:
        if sum(nodes.number for nodes in self.nodes) > MOST_NODES:
            raise ValueError(f"has more than {MOST_NODES:,} nodes")
        return self

    @model_validator(mode="after")
    def _paths_have_a_name_a_level(self) -> Self:
        for nodes in self.nodes:
            if nodes.path and len(nodes.path) != len(self.levels):
                raise ValueError(
                    f"the path of {nodes.names} has {len(nodes.path)} names, and there are the levels "
                    f"{', '.join(self.levels)}"
                )
        return self


class GpuState(StrictModel):
    """The state of GPUs of a node, numbered from 0; all of them without ``slots``.

    ``score``: 1 is sound, 0 is broken. ``quarantines``: of its board, within the time that the policy counts them.
    """

    node: Printable
    slots: tuple[Annotated[int, Field(ge=0, lt=MOST_GPUS)], ...] | None = Field(
        default=None, min_length=1, strict=False
    )
    standing: Standing = Field(default=Standing.HEALTHY, strict=False)
    contact: Contact = Field(default=Contact.LIVE, strict=False)
    is_cordoned: bool = False
    score: Annotated[float, Field(ge=0, le=1)] = 1.0
    quarantines: Annotated[int, Field(ge=0, le=1000)] = 0


class TierQuota(StrictModel):
    """A quota in one tier. ``borrowable_gpus``, ``ceiling_gpus``: None: no limit."""

    guaranteed_gpus: Gpus = 0
    borrowable_gpus: Gpus | None = None
    ceiling_gpus: Gpus | None = None

    @model_validator(mode="after")
    def _guarantee_is_below_the_ceiling(self) -> Self:
        if self.ceiling_gpus is not None and self.guaranteed_gpus > self.ceiling_gpus:
            raise ValueError(
                f"guaranteed_gpus is {self.guaranteed_gpus}, and ceiling_gpus {self.ceiling_gpus}: "
                "guarantee at most the ceiling"
            )
        return self


class Quota(TierQuota):
    """GPUs of a tenant and all below it in a tier."""

    tenant: Printable
    tier: Printable = "on_demand"


class TenantPlace(StrictModel):
    """A tenant and its parent.

    ``used_gpus``: the average number of GPUs that it had in the past, where older use counts less and less. ``quota``:
    its own by tier, as ``quotas`` has them for all.
    """

    name: Printable
    parent: Printable | None = None
    weight: Annotated[float, Field(ge=0.001, le=1_000_000)] = 1.0
    used_gpus: dict[Printable, Annotated[float, Field(ge=0, le=1e9)]] = Field(default_factory=dict)
    quota: dict[Printable, TierQuota] = Field(default_factory=dict)
