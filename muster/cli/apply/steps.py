"""The requests of each change: through the API's own operations, with their permissions and audit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from muster.cli.admin.residency import outside_lines
from muster.cli.apply.kinds import CordonDocument, PolicyDocument, QuotaDocument, RatesDocument, TenantDocument
from muster.cli.apply.reading import Wanted
from muster.cli.framework.output import json_of

if TYPE_CHECKING:
    from muster import documents
    from muster.client.rest import RestClient


class Action(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    RELEASE = "release"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of an object, as it is and as it would be."""

    field: str
    before: Any
    after: Any

    def words(self) -> str:
        """Return the difference as text."""
        if self.before is None:
            return f"{self.field}: {_words(self.after)}"
        return f"{self.field}: {_words(self.before)} → {_words(self.after)}"


@dataclass
class Requesting:
    """The requests of one run. ``tenant_ids``: by name, also of the tenants that it makes.

    ``notes``: what the answers say besides the objects, for a person.
    """

    client: "RestClient"
    reason: str
    tenant_ids: dict[str, str]
    is_dry_run: bool = False
    notes: list[str] = field(default_factory=list)


Request = Callable[[Requesting], None]


@dataclass(frozen=True)
class Step:
    """One object with its differences. ``request`` None: nothing is to be done.

    ``needs``: tenants that must exist before it can be tried.
    """

    kind: str
    name: str
    action: Action
    differences: tuple[Difference, ...] = ()
    source: Wanted | None = None
    request: Request | None = None
    needs: frozenset[str] = field(default_factory=frozenset)

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def seen(self) -> str:
        """What a person who agreed has seen of it."""
        return json_of(self.view())

    def view(self) -> dict[str, Any]:
        """Return the step for programs."""
        return {
            "kind": self.kind,
            "name": self.name,
            "action": self.action.value,
            "differences": [{"field": each.field, "from": each.before, "to": each.after} for each in self.differences],
            "where": None if self.source is None else self.source.where,
        }


def _words(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json_of(value)


def making_tenant(document: TenantDocument) -> Request:
    """Make the tenant, then put it into its place."""

    def send(run: Requesting) -> None:
        made = run.client.create_tenant(document.name, dry_run=run.is_dry_run)
        if not run.is_dry_run:
            run.tenant_ids[document.name] = made["id"]
            if document.under is not None or document.weight != TenantDocument.model_fields["weight"].default:
                placing_tenant(document)(run)
            if document.residency is not None:
                setting_residency(document)(run)

    return send


def changing_tenant(document: TenantDocument, differences: Sequence[Difference]) -> Request:
    """Change the parts of the tenant that differ: its residency rule, then its place."""
    fields = {each.field for each in differences}

    def send(run: Requesting) -> None:
        if "residency" in fields:
            setting_residency(document)(run)
        if fields - {"residency"}:
            placing_tenant(document)(run)

    return send


def setting_residency(document: TenantDocument) -> Request:
    """Set the tenant's residency rule, or lift it."""

    def send(run: Requesting) -> None:
        rule = {"sites": None, "stores": None} if document.residency is None else document.residency.rule
        tenant_id = run.tenant_ids[document.name]
        found = run.client.set_tenant_residency(tenant_id, run.reason, **rule, dry_run=run.is_dry_run)
        run.notes += outside_lines(found)

    return send


def placing_tenant(document: TenantDocument) -> Request:
    """Put the tenant under its department, with its weight there."""

    def send(run: Requesting) -> None:
        parent_id = None if document.under is None else run.tenant_ids[document.under]
        run.client.place_tenant(
            run.tenant_ids[document.name],
            parent_id=parent_id,
            weight=document.weight,
            reason=run.reason,
            dry_run=run.is_dry_run,
        )

    return send


def setting_quota(document: QuotaDocument) -> Request:
    """Set all three numbers of the quota."""

    def send(run: Requesting) -> None:
        run.client.set_quota(
            run.tenant_ids[document.tenant],
            document.tier,
            document.ceiling_gpus,
            run.reason,
            guaranteed_gpus=document.guaranteed_gpus,
            borrowable_gpus=document.borrowable_gpus,
            dry_run=run.is_dry_run,
        )

    return send


def activating_policy(document: PolicyDocument, check: Mapping[str, Any]) -> Request:
    """Activate the policy, if the version that it was compared with is still the active one."""

    def send(run: Requesting) -> None:
        version = check["active_version"]
        run.client.activate_policy(document.document, run.reason, version=version, dry_run=run.is_dry_run)

    return send


def setting_rates(document: RatesDocument) -> Request:
    """Set the rate cards, whole."""

    def send(run: Requesting) -> None:
        past = document.corrects_past
        run.client.set_rates(document.document, run.reason, corrects_past=past, dry_run=run.is_dry_run)

    return send


def cordoning(document: CordonDocument, place: str, replaced: "Sequence[documents.Cordon]") -> Request:
    """Create the cordon, then end the ones that it replaces, so that none is missing between them."""

    def send(run: Requesting) -> None:
        wanted: documents.NewCordon = {"reason": document.reason}
        wanted["node_id" if document.node is not None else "gpu_uuid"] = place
        if document.until is not None:
            wanted["until"] = document.until.isoformat()
        run.client.create_cordon(wanted, dry_run=run.is_dry_run)
        releasing(replaced)(run)

    return send


def releasing(cordons: "Sequence[documents.Cordon]") -> Request:
    """End the cordons."""

    def send(run: Requesting) -> None:
        for cordon in cordons:
            run.client.release_cordon(cordon["id"], run.reason, dry_run=run.is_dry_run)

    return send
