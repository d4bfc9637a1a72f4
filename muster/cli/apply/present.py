"""The objects that documents name, as the control plane has them: read for the differences, and before a change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from muster.cli.apply.kinds import CordonDocument, PolicyDocument, QuotaDocument, TenantDocument
from muster.cli.apply.reading import Wanted
from muster.cli.framework.exits import CommandError
from muster.cli.framework.names import gpu_named

if TYPE_CHECKING:
    from muster import documents
    from muster.client.rest import RestClient

BY_PERSON: Final = "by_person"
"""Why a cordon stands that a person set; others belong to drains, windows of maintenance and rules."""


@dataclass
class Present:
    """The objects. ``quotas``: by tenant name and tier. ``places``: node names and parts of GPUs' UUIDs → ids.

    ``check``: the comparison of the policy's document with the active policy. ``rates``: the active rate cards; None:
    there are none. ``faults``: names that name nothing.
    """

    tenants: dict[str, "documents.Tenant"] = field(default_factory=dict)
    quotas: dict[tuple[str, str], "documents.Quota"] = field(default_factory=dict)
    cordons: list["documents.Cordon"] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    tiers: frozenset[str] = frozenset()
    check: Mapping[str, Any] = field(default_factory=dict)
    rates: Mapping[str, Any] | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def tenant_names(self) -> dict[str, str]:
        """Ids of tenants → their names."""
        return {each["id"]: name for name, each in self.tenants.items()}


def read_present(client: "RestClient", wanted: Sequence[Wanted], *, reads_cordons: bool = False) -> Present:
    """Return what the documents are about, and nothing else. ``reads_cordons``: also without a document of one."""
    found = Present()
    kinds = {each.document.kind for each in wanted}
    if kinds & {"tenant", "quota"}:
        found.tenants = {tenant["name"]: tenant for tenant in client.tenants()}
    if "quota" in kinds:
        _read_quotas(client, wanted, found)
    if "rates" in kinds:
        found.rates = client.rates()["document"]
    if kinds & {"quota", "rates"}:
        found.tiers = frozenset(client.policy()["document"].get("tiers", {}))
    if reads_cordons or "cordon" in kinds:
        found.cordons = [each for each in client.cordons() if each["reason_code"] == BY_PERSON]
        _read_places(client, wanted, found)
    for each in wanted:
        if isinstance(each.document, PolicyDocument):
            found.check = client.check_policy(each.document.document)
    return found


def _read_quotas(client: "RestClient", wanted: Sequence[Wanted], found: Present) -> None:
    names = {each.document.tenant for each in wanted if isinstance(each.document, QuotaDocument)}
    for name in sorted(names & found.tenants.keys()):
        for quota in client.quotas(found.tenants[name]["id"]):
            found.quotas[name, quota["tier"]] = quota


def _read_places(client: "RestClient", wanted: Sequence[Wanted], found: Present) -> None:
    cordons = [(each, each.document) for each in wanted if isinstance(each.document, CordonDocument)]
    nodes = client.nodes() if any(document.node for _, document in cordons) else []
    node_ids = {key: node["id"] for node in nodes for key in (node["id"], node["name"])}
    for each, document in cordons:
        if document.node is not None and document.node not in node_ids:
            found.faults.append(each.fault(f"there is no node {document.node!r}", "/node"))
        elif document.node is not None:
            found.places[document.node] = node_ids[document.node]
        elif document.gpu is not None:
            try:
                found.places[document.gpu] = gpu_named(client, document.gpu)
            except CommandError as fault:
                found.faults.append(each.fault(str(fault), "/gpu"))


def named_tenants(wanted: Sequence[Wanted]) -> set[str]:
    """Return the names of the tenants that the documents themselves describe."""
    return {each.document.name for each in wanted if isinstance(each.document, TenantDocument)}
