"""The differences between documents and what the control plane has, in the order in which they are applied."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from muster.cli.apply.kinds import (
    DOCUMENT_KINDS,
    CordonDocument,
    PolicyDocument,
    QuotaDocument,
    RatesDocument,
    TenantDocument,
)
from muster.cli.apply.present import Present, named_tenants
from muster.cli.apply.rate_steps import rate_differences, rates_of
from muster.cli.apply.reading import Wanted
from muster.cli.apply.steps import (
    Action,
    Difference,
    Step,
    activating_policy,
    changing_tenant,
    cordoning,
    making_tenant,
    releasing,
    setting_quota,
    setting_rates,
)
from muster.domain.policy.document import Policy

if TYPE_CHECKING:
    from muster import documents

_NEW_TENANT: Final = {
    "under": None,
    "weight": TenantDocument.model_fields["weight"].default,
    "residency": None,
}
_NO_QUOTA: Final = {"guaranteed_gpus": None, "borrowable_gpus": None, "ceiling_gpus": None}


class Planning:
    """The steps of a set of documents. ``faults``: what is wrong with them, found before anything is changed."""

    def __init__(self, wanted: Sequence[Wanted], present: Present) -> None:
        self._wanted = wanted
        self._present = present
        self._tenants = named_tenants(wanted) | present.tenants.keys()
        self.faults: list[str] = [*present.faults, *self._repeated()]

    def steps(self, *, prunes_cordons: bool = False) -> list[Step]:
        """Return the steps by kind; tenants by the tree, quotas with lower guarantees first."""
        found = [step for each in self._in_order() for step in self._steps_of(each)]
        quotas = sorted((step for step in found if step.kind == "quota"), key=_raise_of)
        ordered = [
            step for kind in DOCUMENT_KINDS for step in (quotas if kind == "quota" else found) if step.kind == kind
        ]
        return [*ordered, *(self._pruned() if prunes_cordons else ())]

    def _repeated(self) -> Iterator[str]:
        """Yield each document about an object that another one is about too."""
        first: dict[tuple[str, ...], Wanted] = {}
        for each in self._wanted:
            about: tuple[str, ...] = (each.document.kind, each.document.title)
            if isinstance(each.document, CordonDocument):
                about = (each.document.kind, *self._identity(each.document))
            before = first.setdefault(about, each)
            if before is not each:
                yield each.fault(f"the {each.document.kind} {each.document.title} is also in {before.where}: keep one")

    def _identity(self, document: CordonDocument) -> tuple[str, str]:
        """Return what identifies the cordon: its place, whichever of its names the document has, and its reason."""
        place = document.node or document.gpu or ""
        return self._present.places.get(place, place), document.reason

    def _in_order(self) -> list[Wanted]:
        """Return the documents with a tenant after its department; a circle of them is a fault."""
        rest = {each.document.name: each for each in self._wanted if isinstance(each.document, TenantDocument)}
        ordered = [each for each in self._wanted if not isinstance(each.document, TenantDocument)]
        while rest:
            ready = [each for each in rest.values() if getattr(each.document, "under", None) not in rest]
            if not ready:
                circle = next(iter(rest.values()))
                self.faults.append(circle.fault(f"{', '.join(sorted(rest))} stand under each other", "/under"))
                break
            ordered += ready
            rest = {name: each for name, each in rest.items() if each not in ready}
        return ordered

    def _steps_of(self, wanted: Wanted) -> Iterator[Step]:
        document = wanted.document
        if isinstance(document, TenantDocument):
            yield self._tenant(wanted, document)
        elif isinstance(document, QuotaDocument):
            yield self._quota(wanted, document)
        elif isinstance(document, PolicyDocument):
            yield self._policy(wanted, document)
        elif isinstance(document, RatesDocument):
            yield self._rates(wanted, document)
        elif document.node in self._present.places or document.gpu in self._present.places:
            yield self._cordon(wanted, document)

    def _tenant(self, wanted: Wanted, document: TenantDocument) -> Step:
        if document.under is not None and document.under not in self._tenants:
            self.faults.append(wanted.fault(f"there is no tenant {document.under!r}, here or in a document", "/under"))
        rule = None if document.residency is None else document.residency.rule
        after = {"under": document.under, "weight": document.weight, "residency": rule}
        needs = frozenset({document.under} if document.under else ())
        known = self._present.tenants.get(document.name)
        if known is None:
            given = tuple(Difference(name, None, value) for name, value in after.items() if value != _NEW_TENANT[name])
            return _step(wanted, Action.CREATE, given, making_tenant(document))
        above = known["parent_id"]
        before = {
            "under": None if above is None else self._present.tenant_names.get(above, above),
            "weight": known["weight"],
            "residency": known.get("residency"),  # a server of a release before does not say
        }
        found = _differences(before, after)
        return _step(wanted, Action.CHANGE, found, changing_tenant(document, found), needs | {document.name})

    def _quota(self, wanted: Wanted, document: QuotaDocument) -> Step:
        if document.tenant not in self._tenants:
            words = f"there is no tenant {document.tenant!r}, here or in a document"
            self.faults.append(wanted.fault(words, "/tenant"))
        tiers = self._tiers()
        if document.tier not in tiers:
            self.faults.append(wanted.fault(f"the policy defines: {', '.join(sorted(tiers))}", "/tier"))
        known = self._present.quotas.get((document.tenant, document.tier))
        needs = frozenset({document.tenant})
        if known is None:
            found = _differences(_NO_QUOTA, document.limits)
            return _step(wanted, Action.CREATE, found, setting_quota(document), needs)
        found = _differences({name: known[name] for name in document.limits}, document.limits)  # type: ignore[literal-required]
        return _step(wanted, Action.CHANGE, found, setting_quota(document), needs)

    def _tiers(self) -> frozenset[str]:
        """Return the tiers that the policy has once the documents are applied."""
        for each in self._wanted:
            if isinstance(each.document, PolicyDocument):
                named = each.document.document.get("tiers", Policy().model_dump()["tiers"])
                return frozenset(named) if isinstance(named, dict) else frozenset()
        return self._present.tiers

    def _policy(self, wanted: Wanted, document: PolicyDocument) -> Step:
        check = self._present.check
        for fault in (*check["errors"], *check.get("obstacles", ())):
            self.faults.append(wanted.fault(fault["detail"], f"/document{fault['pointer']}"))
        found = tuple(Difference(each["path"], each["from"], each["to"]) for each in check.get("differences", ()))
        request = None if check["errors"] else activating_policy(document, check)
        return _step(wanted, Action.CHANGE, found, request)

    def _rates(self, wanted: Wanted, document: RatesDocument) -> Step:
        cards, faults = rates_of(document.document, self._tiers())
        self.faults += [wanted.fault(fault["detail"], f"/document{fault['pointer']}") for fault in faults]
        before = self._present.rates
        found = () if cards is None else rate_differences(before, cards)
        action = Action.CREATE if before is None else Action.CHANGE
        return _step(wanted, action, found, None if cards is None else setting_rates(document))

    def _cordon(self, wanted: Wanted, document: CordonDocument) -> Step:
        place, reason = self._identity(document)
        there = [
            each
            for each in self._present.cordons
            if place in {each["node_id"], each["gpu_uuid"]} and each["reason"] == reason
        ]
        until = None if document.until is None else _moment(document.until)
        if document.until is not None and document.until <= datetime.now(UTC):
            return _step(wanted, Action.CHANGE, (), None)  # its time is over: the server has ended it
        if not there:
            found = () if until is None else (Difference("until", None, until),)
            return _step(wanted, Action.CREATE, found, cordoning(document, place, ()))
        ends = [_end_of(each) for each in there]
        if until in ends:  # others are what a run that broke off left
            rest = [each for number, each in enumerate(there) if number != ends.index(until)]
            return _step(wanted, Action.CHANGE, _released(rest), releasing(rest))
        changed = (Difference("until", ends[0], until), *_released(there[1:]))
        return _step(wanted, Action.CHANGE, changed, cordoning(document, place, there))

    def _pruned(self) -> Iterator[Step]:
        """Yield the release of each cordon of a person that no document has."""
        cordons = [each.document for each in self._wanted if isinstance(each.document, CordonDocument)]
        kept = {self._identity(each) for each in cordons}
        for cordon in self._present.cordons:
            place = cordon["node_id"] or cordon["gpu_uuid"]
            if (place, cordon["reason"]) not in kept:
                name = f"on {place}: {cordon['reason']}"
                yield Step("cordon", name, Action.RELEASE, request=releasing([cordon]))


def _step(
    wanted: Wanted,
    action: Action,
    differences: tuple[Difference, ...],
    request: Any,
    needs: frozenset[str] = frozenset(),
) -> Step:
    """Return the step of a document; a change without a difference is none."""
    document = wanted.document
    if action is Action.CHANGE and not differences:
        action, request = Action.UNCHANGED, None
    return Step(document.kind, document.title, action, differences, wanted, request, needs)


def _differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[Difference, ...]:
    return tuple(Difference(name, before[name], value) for name, value in after.items() if before[name] != value)


def _end_of(cordon: "documents.Cordon") -> str | None:
    return None if cordon["until"] is None else _moment(datetime.fromisoformat(cordon["until"]))


def _released(cordons: "Sequence[documents.Cordon]") -> tuple[Difference, ...]:
    """Return the differences by cordons that stand in addition to the document's."""
    return tuple(Difference("another", f"until {_end_of(each) or 'it is released'}", "released") for each in cordons)


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _raise_of(step: Step) -> int:
    """Return by how much a quota raises its guarantee: what is lowered first is free for the others."""
    return sum((each.after or 0) - (each.before or 0) for each in step.differences if each.field == "guaranteed_gpus")
