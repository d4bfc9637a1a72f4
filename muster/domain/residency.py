"""Residency: the sites at which a tenant's jobs may run, and the stores that may keep its data. Pure.

A tenant's own rule and the rules of all above it in the tree hold together: what one of them excludes is excluded. A
host's site is its label ``site``; a host without one counts as outside every site, and so does a content store.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from muster.domain.strict import Text, object_prefix

SITE_LABEL: Final = "site"
S3_SCHEME: Final = "s3://"
_STORE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def _store(text: str) -> str:
    if text.startswith(S3_SCHEME):
        return object_prefix(text)
    if _STORE.fullmatch(text) is None:
        raise ValueError("must be the name of a content store, or s3://bucket/prefix of a store for checkpoints")
    return text


SiteNames = Annotated[
    tuple[Annotated[Text, Field(min_length=1, max_length=256)], ...], Field(min_length=1, max_length=64, strict=False)
]
StoreNames = Annotated[
    tuple[Annotated[str, AfterValidator(_store), Field(max_length=400)], ...],
    Field(min_length=1, max_length=64, strict=False),
]


class OutsideKind(StrEnum):
    """What is outside of a rule: an attempt that runs, a store of checkpoints, stored content, copies on hosts."""

    RUNNING_JOB = "running_job"
    CHECKPOINTS = "checkpoints"
    CONTENT = "content"
    COPIES = "copies"


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The content store of a control plane. ``site``: None: unknown, and so outside every site."""

    name: str
    site: str | None = None


@dataclass(frozen=True, slots=True)
class Residency:
    """A rule. None permits everything, an empty set nothing.

    ``stores``: names of content stores, and ``s3://bucket/prefix`` of stores for checkpoints.
    """

    sites: frozenset[str] | None = None
    stores: frozenset[str] | None = None

    def __bool__(self) -> bool:
        return self.sites is not None or self.stores is not None

    def with_rule(self, other: "Residency") -> "Residency":
        """Return the rule that permits what both permit."""
        return Residency(_both(self.sites, other.sites), _both(self.stores, other.stores))

    def has_site(self, labels: Mapping[str, str]) -> bool:
        """Return whether jobs may run on a host with these labels."""
        return self.sites is None or labels.get(SITE_LABEL) in self.sites

    def document(self) -> dict[str, list[str] | None]:
        """Return the rule as it is stored and shown."""
        return {"sites": _listed(self.sites), "stores": _listed(self.stores)}

    def words(self) -> str:
        """Return the rule as text."""
        parts = [
            *([] if self.sites is None else [f"jobs at {_named('site', self.sites)}"]),
            *([] if self.stores is None else [f"data in {_named('store', self.stores)}"]),
        ]
        return f"{' and '.join(parts)} only" if parts else "any site and any store"

    def content_refusal(self, store: StorePlace | None) -> str | None:
        """Return why content must not be written to this store; None: it may. ``store`` None: there is none.

        A rule that names no store permits the stores at its sites.
        """
        if not self:
            return None
        if store is None:
            return f"no content store is configured, and the rule permits {self.words()}"
        if self.stores is not None:
            if store.name in self.stores:
                return None
            return f"the rule permits {_named('store', self.stores)} only, and the content store is {store.name}"
        if self.sites is None or store.site in self.sites:
            return None
        where = "has no site" if store.site is None else f"is at the site {store.site}"
        return (
            f"the content store {store.name} {where}, and the rule permits stores at {_named('site', self.sites)} only"
        )

    def checkpoint_refusal(self, location: str) -> str | None:
        """Return why checkpoints must not be written below this ``s3://`` location; None: they may."""
        if not self:
            return None
        permitted = [each for each in self.stores or () if each.startswith(S3_SCHEME)]
        prefix = f"{location.rstrip('/')}/"
        if any(prefix.startswith(f"{each.rstrip('/')}/") for each in permitted):
            return None
        named = " or ".join(sorted(permitted)) or "no store for checkpoints"
        return f"{location} is not permitted by its tenant's residency rule, which names {named}"


ANY: Final = Residency()


def read_residency(document: Mapping[str, Any] | None) -> Residency:
    """Return a stored rule; None: there is none."""
    if document is None:
        return ANY
    return Residency(_set(document.get("sites")), _set(document.get("stores")))


def residency_of(rules: Iterable[Residency]) -> Residency:
    """Return the rule that permits what all permit."""
    found = ANY
    for rule in rules:
        found = found.with_rule(rule)
    return found


def site_words(sites: Iterable[str]) -> str:
    """Return these sites as text."""
    return _named("site", sites)


def _named(noun: str, names: Iterable[str]) -> str:
    listed = sorted(names)
    return f"the {noun} {' or '.join(listed)}" if listed else f"no {noun}"


def _both(first: frozenset[str] | None, second: frozenset[str] | None) -> frozenset[str] | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _set(values: Sequence[str] | None) -> frozenset[str] | None:
    return None if values is None else frozenset(values)


def _listed(values: frozenset[str] | None) -> list[str] | None:
    return None if values is None else sorted(values)
