"""Checks that the parts of a scenario agree: names that exist, GPUs that a node has, the order in time."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from muster.domain.ids import TenantId
from muster.domain.policy.document import Policy
from scheduler.quota.tenancy import refusal_of_parent
from scheduler.solve.job_rules import faults_of
from simulator.scenarios.fleet_form import MOST_GPUS, GpuState
from simulator.scenarios.form import Place, ScenarioForm
from simulator.scenarios.job_form import QueuedJob, RunningJob

_NAMED = 12
"""Most accepted names that are listed."""


class Disagreement(NamedTuple):
    """One disagreement. ``place``: the field that is at fault."""

    place: Place
    words: str


def disagreements(form: ScenarioForm, policy: Policy) -> Iterator[Disagreement]:
    """Yield all disagreements. Each part of ``form`` is valid by itself."""
    yield from _of_nodes(form)
    yield from _of_domains(form)
    yield from _of_tenants(form)
    yield from _of_tiers(form, policy)
    yield from _of_jobs(form, policy)
    yield from _of_times(form)
    yield from _of_ends(form)


def _of_nodes(form: ScenarioForm) -> Iterator[Disagreement]:
    sizes: dict[str, int] = {}
    for number, nodes in enumerate(form.topology.nodes):
        twice = next((name for name in nodes.each() if name in sizes), None)
        if twice is not None:
            yield Disagreement(("topology", "nodes", number, "names"), f"names a node twice: {twice}")
        sizes.update(dict.fromkeys(nodes.each(), nodes.gpus))
    for place, name in _named_nodes(form):
        if name not in sizes:
            yield Disagreement(place, f"no node of the topology is named {name}")
    for place, state in _states(form):
        size = sizes.get(state.node, MOST_GPUS)
        for index, slot in enumerate(state.slots or ()):
            if slot >= size:
                words = f"{slot} is no GPU of {state.node}, which has {size}: 0 to {size - 1}"
                yield Disagreement((*place, "slots", index), words)


def _named_nodes(form: ScenarioForm) -> Iterator[tuple[Place, str]]:
    for number, job in enumerate(form.jobs.running):
        yield from ((("jobs", "running", number, "nodes", rank), name) for rank, name in enumerate(job.nodes))
    yield from (((*place, "node"), state.node) for place, state in _states(form))
    for number, window in enumerate(form.maintenance):
        yield from ((("maintenance", number, "nodes", index), name) for index, name in enumerate(window.nodes))


def _of_domains(form: ScenarioForm) -> Iterator[Disagreement]:
    for number, window in enumerate(form.maintenance):
        if window.domain is None:
            continue
        meant = sorted({path for nodes in form.topology.nodes for path in nodes.domains_of(window.domain)})
        place = ("maintenance", number, "domain")
        if not meant:
            yield Disagreement(place, f"no path of the topology has the domain {window.domain}")
        elif len(meant) > 1:
            yield Disagreement(
                place, f"{window.domain} is a name of several domains: use one of the paths {', '.join(meant)}"
            )


def _states(form: ScenarioForm) -> Iterator[tuple[Place, GpuState]]:
    yield from ((("gpus", number), state) for number, state in enumerate(form.gpus))
    yield from (((*place, "change"), one.change) for place, one in form.placed_happenings if one.change is not None)


def _of_tenants(form: ScenarioForm) -> Iterator[Disagreement]:
    yield from _of_the_tree(form)
    told: Counter[tuple[str, str]] = Counter()
    for tenant, tier, place in _quotas(form):
        told[tenant, tier] += 1
        if told[tenant, tier] == 2:
            yield Disagreement(place, f"the quota of {tenant} in {tier} is given twice")
    known = {one.name for one in form.tenants}
    if not known:
        return
    for number, quota in enumerate(form.quotas):
        if quota.tenant not in known:
            yield Disagreement(("quotas", number, "tenant"), _no_tenant(quota.tenant, known))
    for place, job in (*form.placed_jobs(), *form.planned_jobs()):
        if "tenant" in job.model_fields_set and job.tenant not in known:
            yield Disagreement((*place, "tenant"), _no_tenant(job.tenant, known))


def _no_tenant(name: str, known: set[str]) -> str:
    return f"{_not_among(name, known, 'tenants')}; name it there too"


def _of_the_tree(form: ScenarioForm) -> Iterator[Disagreement]:
    parents: dict[TenantId, TenantId | None] = {}
    for number, one in enumerate(form.tenants):
        if one.name in parents:
            yield Disagreement(("tenants", number, "name"), f"{one.name} is named twice")
        parents[TenantId(one.name)] = None
    for number, one in enumerate(form.tenants):
        if one.parent is None:
            continue
        place = ("tenants", number, "parent")
        if one.parent not in parents:
            yield Disagreement(place, f"the parent of {one.name} is {one.parent}, which is not among the tenants")
            continue
        refusal = refusal_of_parent(parents, TenantId(one.name), TenantId(one.parent))
        if refusal is not None:
            yield Disagreement(place, f"{one.name} cannot be under {one.parent}: {refusal}")
            continue
        parents[TenantId(one.name)] = TenantId(one.parent)


def _quotas(form: ScenarioForm) -> Iterator[tuple[str, str, Place]]:
    """Yield tenant, tier, and the place in the document, of each quota."""
    for number, quota in enumerate(form.quotas):
        yield quota.tenant, quota.tier, ("quotas", number)
    for number, one in enumerate(form.tenants):
        for tier in one.quota:
            yield one.name, tier, ("tenants", number, "quota", tier)


def _of_tiers(form: ScenarioForm, policy: Policy) -> Iterator[Disagreement]:
    said: list[tuple[Place, str]] = [((*place, "tier"), job.tier) for place, job in form.placed_jobs()]
    said += [((*place, "tier"), job.tier) for place, job in form.planned_jobs()]
    said += [(("quotas", number, "tier"), quota.tier) for number, quota in enumerate(form.quotas)]
    for number, one in enumerate(form.tenants):
        said += [(("tenants", number, "quota", tier), tier) for tier in one.quota]
        said += [(("tenants", number, "used_gpus", tier), tier) for tier in one.used_gpus]
    for place, tier in said:
        if tier not in policy.tiers:
            yield Disagreement(place, _not_among(tier, set(policy.tiers), "tiers of the policy"))


def _not_among(name: str, known: set[str], what: str) -> str:
    named = sorted(known)
    more = [f"and {len(named) - _NAMED} more"] if len(named) > _NAMED else []
    return f"{name} is not among the {what}: {', '.join([*named[:_NAMED], *more])}"


def _of_jobs(form: ScenarioForm, policy: Policy) -> Iterator[Disagreement]:
    told: Counter[str] = Counter()
    for place, job in form.placed_jobs():
        told[job.name] += 1
        if told[job.name] == 2:
            yield Disagreement((*place, "name"), f"two jobs are named {job.name}")
    for place, job in (*form.placed_jobs(), *form.planned_jobs()):
        for fault in faults_of(job, policy.placement):
            yield Disagreement((*place, *_of_the_form(fault.pointer)), f"{job.name}: {fault.detail}")


def _of_the_form(pointer: str) -> Place:
    """Return the place of a pointer: a scenario's job has the fields of topology and shape among its own."""
    parts = [part for part in pointer.split("/") if part]
    return tuple(parts[1:] if parts[0] in {"topology", "shape"} else parts)


def _of_times(form: ScenarioForm) -> Iterator[Disagreement]:
    for number, job in enumerate(form.jobs.queued):
        if job.queued_s > 0:
            words = f"must be at most 0: {job.name} is pending at second 0; submit a later job in requests"
            yield Disagreement(("jobs", "queued", number, "queued_s"), words)
    for place, one in form.placed_happenings:
        for word, asked in (("submit", one.submit), ("plan", one.plan)):
            if asked is not None and asked.queued_s > one.at_s:
                words = f"must be at most at_s, which is {one.at_s:g}: {asked.name} cannot have come later"
                yield Disagreement((*place, word, "queued_s"), words)


def _of_ends(form: ScenarioForm) -> Iterator[Disagreement]:
    """Yield ends of jobs that do not exist by then: by the second, within one second by the place in the list."""
    jobs: tuple[RunningJob | QueuedJob, ...] = (*form.jobs.running, *form.jobs.queued)
    there = {job.name for job in jobs}
    later = {one.submit.name: one.at_s for _, one in reversed(form.placed_happenings) if one.submit is not None}
    for place, one in form.placed_happenings:
        if one.submit is not None:
            there.add(one.submit.name)
        for word, name in (("cancel", one.cancel), ("end", one.end)):
            if name is None or name in there:
                continue
            words = f"{word} names {name}, and no job of the scenario has that name"
            if name in later:
                words = f"{word} names {name}, which is submitted only after that, at {later[name]:g} s"
            yield Disagreement((*place, word), words)
