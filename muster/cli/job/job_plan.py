"""``muster job plan`` shows the outcome of a job before its submission, ``muster job explain`` why one waits."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.framework.durations import seconds_of
from muster.cli.framework.field_help import field_help
from muster.cli.framework.names import JobId, TenantOption, tenant_named
from muster.cli.framework.output import Answer, Page, age_of, moment_of
from muster.cli.framework.profile import open_client
from muster.cli.job.costs.job_cost import planned_lines
from muster.cli.job.environment_texts import environment_words
from muster.cli.job.fault_lines import fault_lines, texts_of
from muster.cli.job.job_options import Tier, WallTime
from muster.cli.job.lock_options import environment_faults, locked_sizes
from muster.cli.job.placement_options import PlaceOptions, SizeOptions
from muster.cli.job.program_options import ProgramOptions, name_of
from muster.cli.job.verdicts import lines_of as verdict_lines
from muster.cli.job.work_folder import Bundled, chosen_folder
from muster.client.transport import Problem
from muster.domain.gpu.levels import FLEET_LEVEL
from muster.domain.job.alignment_texts import alignment_words
from muster.domain.job.plan_texts import OUTCOMES, Tense
from muster.domain.states import ExpectedFrom, PlanOutcome

if TYPE_CHECKING:
    from muster import documents
    from muster.client.rest import RestClient

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_INVALID: Final = 422

AHEAD_SHOWN: Final = 5
_OPTIONS: Final = {
    "wall_time_s": "--wall-time",
    "topology.required": "--within",
    "node_labels.without": "any value of the label",
    "tier": "--tier",
    "shape.nodes": "--nodes",
    "quota.ceiling_gpus": "a quota of GPUs in its tier of",
    "quota.borrowable_gpus": "a right to borrow GPUs in its tier of",
    "quota_above.ceiling_gpus": "a quota of GPUs of its department in its tier of",
    "quota_above.borrowable_gpus": "a right of its department to borrow GPUs in its tier of",
    "fleet.nodes": "this many more idle hosts of its cohort that it may use:",
}


def plan(
    size: SizeOptions,
    place: PlaceOptions,
    around: ProgramOptions,
    program: Annotated[
        list[str] | None,
        typer.Argument(
            help=field_help("script", "SCRIPT [ARGS…], or with --command the whole command. Without it: any.")
        ),
    ] = None,
    tier: Tier = "on_demand",
    wall_time: WallTime = None,
    name: Annotated[
        str | None,
        typer.Option(help=field_help("name", "Without a wall time the time is expected that jobs of this name took.")),
    ] = None,
    tenant: TenantOption = None,
) -> Answer:
    """Show where a job would start, which jobs would be reclaimed, or why it would wait. Nothing is stored.

    With a program it is checked too, as by `muster job submit --dry-run`.
    """
    wall_time_s = seconds_of(wall_time, "--wall-time")
    question: dict[str, Any] = {"shape": size.shape(), "tier": tier, "wall_time_s": wall_time_s, **place.fields()}
    if program:
        from muster.cli.job.job_submit import submitted

        question |= {"name": name or name_of(program[0]), "program": around.fields(program)}
        folder = around.folder(program)
        return submitted(question, tenant, folder=folder, follow=False, must_wait=False, dry_run=True)
    around.require_program_less()
    if name is not None:
        question["name"] = name
    with open_client() as client:
        if tenant is not None:
            question["tenant_id"] = tenant_named(client, tenant)
        named = chosen_folder(around.bundle, no_bundle=around.no_bundle, words=(), is_contained=False)
        bundled = None if named is None else Bundled.of(client, named, question)
        lines = [] if bundled is None else [bundled.would_upload()]
        if around.lock is not None:
            lines.append(locked_sizes(around.lock, str(around.lock), around.from_host or []))
            lines += environment_faults(_content_of(client, question), allows_source=around.allow_source)
        return plan_shown(client.plan_job(question), lines)


def _content_of(client: "RestClient", question: Mapping[str, Any]) -> "documents.ContentLimits | None":
    """Return what the control plane says of content; None: it is of an earlier release, or no tenant is named."""
    try:
        return client.content_limits(tenant_id=question.get("tenant_id"))
    except Problem as problem:
        if problem.status not in {_NOT_FOUND, _INVALID}:
            raise
    return None


def plan_shown(found: Mapping[str, Any], more: Sequence[str] = ()) -> Page:
    """Return the plan of a job that is not submitted; a dry run of ``muster job submit`` is one too.

    ``more``: lines about its work folder.
    """
    others = (f"  {line}" for line in more if line != found.get("environment"))
    return Page(found, [*lines_of(found, Tense.CONDITIONAL), *others])


def explain(job_id: JobId) -> Page:
    """Show why a job waits or hangs: what binds, the jobs before it, its start forecast; the newest verdict on it.

    Of a job that ran it also shows its lines about faults, the root first, the transport that NCCL chose, and what
    slows it down, with the gain of a repair.
    """
    with open_client() as client:
        stated, printed = _newest_verdict(client, job_id), fault_lines(client, job_id)
        found_of_pace = _findings(client, job_id)
        of_watch = {"verdict": stated[0] if stated else None, "fault_lines": printed, "findings": found_of_pace}
        said = [line for item in stated for line in verdict_lines(item)]
        said += [] if printed is None else texts_of(printed)
        built = _environments(client, job_id)
        said += built
        said += finding_lines(found_of_pace)
        try:
            found = client.explain_job(job_id)
        except Problem as problem:
            if problem.status != _CONFLICT or not said:
                raise
            state = _state_words(client, job_id) if built else []
            first, *others = [*state, *said]
            return Page(of_watch, [f"{job_id}: {first}", *others])
    first, *others = lines_of(
        found, Tense.CONDITIONAL if found["victims"] else Tense.DONE
    )  # a notified job is no victim
    lines = [f"{job_id}: {first}", *others]
    return Page({**found, **of_watch}, [*lines, *(f"  {line}" for line in said)])


def _findings(client: "RestClient", job_id: str) -> "documents.JobFindings | None":
    """Return findings about its speed; None for a server of the release before."""
    try:
        return client.job_findings(job_id)
    except Problem as problem:
        if problem.status == _NOT_FOUND:
            return None
        raise


def finding_lines(found: "documents.JobFindings | None") -> list[str]:
    """Return a line for each finding, with its evidence, and one for its advice."""
    if found is None or (not found["items"] and found["why"] is None):
        return []
    if not found["items"]:
        return [f"no finding about its speed: {found['why']}"]
    lines = []
    for item in found["items"]:
        span = f"{moment_of(item['since'])} to {moment_of(item['until'])}"
        lines += [f"{item['kind']}: {item['text']} ({item['num_reports']} reports, {span})", f"  {item['advice']}"]
    return lines


def _environments(client: "RestClient", job_id: str) -> list[str]:
    """Return lines about builds of its environment; empty for a server of the release before, or without the right."""
    try:
        found = client.job_environments(job_id)["items"]
    except Problem as problem:
        if problem.status in {_FORBIDDEN, _NOT_FOUND}:
            return []
        raise
    logged = any(build["log"] for build in found)
    more = [f"what its build printed: muster job logs --build {job_id}"] if logged else []
    return [*(environment_words(build) for build in found), *more]


def _state_words(client: "RestClient", job_id: str) -> list[str]:
    job = client.job(job_id)
    return [f"{job['state']}: {job['state_reason']}"]


def _newest_verdict(client: "RestClient", job_id: str) -> "list[documents.Verdict]":
    """Return the newest verdict that stands on the job, as a list; empty for a server of the release before."""
    try:
        return list(islice(client.verdicts(job=job_id, state="standing", limit=1), 1))
    except Problem as problem:
        if problem.status == _NOT_FOUND:
            return []
        raise


def lines_of(found: Mapping[str, Any], tense: Tense) -> list[str]:
    outcome = PlanOutcome(found["outcome"])
    is_later = found["starts_at"] and outcome is not PlanOutcome.STARTS
    starts_at = f", free at about {moment_of(found['starts_at'])}" if is_later else ""
    jobs_before = "1 job is" if found["num_ahead"] == 1 else f"{found['num_ahead']} jobs are"
    ahead = f"; {jobs_before} before it" if found["num_ahead"] else ""
    gpus = f", for {found['gpus_ahead']} GPUs" if found.get("gpus_ahead") else ""
    lines = [f"{OUTCOMES[tense][outcome]}{starts_at}{ahead}{gpus}"]
    if found["why"]:
        lines.append(f"  {found['why']}")
    if found.get("environment"):
        lines.append(f"  {found['environment']}")
    lines += reasons(found)
    lines += _before(found)
    lines += planned_lines(found.get("cost"))
    if found.get("expected_from") == ExpectedFrom.HISTORY:
        took = age_of(found["expected_run_s"])
        lines.append(f"  expected to take {took}, as others of its name and shape did; this is no limit")
    lines += _start_range(found, "would start" if tense is Tense.CONDITIONAL else "starts")
    lines += [f"  rank {host['node_rank']}  {host['node_name']}  {len(host['gpus'])} GPUs" for host in found["hosts"]]
    standing = alignment_words(
        found.get("groups", ()), found.get("rails"), len(found["hosts"])
    )  # of an older server none
    lines += [f"  {line}" for line in standing]
    for victim in found["victims"]:
        whose = f" of {victim['job_id']}" if victim["job_id"] else ""
        kept = f", continues with {victim['num_kept_gpus']}" if victim.get("num_kept_gpus") else ""
        lines.append(
            f"  would be reclaimed: {victim['num_gpus']} GPUs{whose} ({victim['tier']}), {victim['notice_s']:g} s of "
            f"notice, {victim['cost_gpu_s']:,.0f} GPU-seconds lost{kept}"
        )
    lines += [f"  it would start at once {change_words(item)}" for item in found["changes"]]
    return lines


def _start_range(found: Mapping[str, Any], starts: str) -> Iterator[str]:
    """Yield the start forecast if it is known; an older server does not send it."""
    if not found.get("earliest_at"):
        return
    earliest, latest = moment_of(found["earliest_at"]), found["latest_at"]
    if found.get("firm_start_at"):
        yield f"  {starts} between {earliest} and {moment_of(found['firm_start_at'])}, which is firm"
    elif latest:
        yield f"  {starts} between {earliest} and {moment_of(latest)}, in about 8 of 10 cases"
    else:
        yield f"  {starts} at {earliest} at the earliest; the latest is not known"


def _before(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first jobs before this one; an older server names none."""
    shown = found.get("ahead", ())[:AHEAD_SHOWN]
    for one in shown:
        yield f"    before it: {one['job_id'] or 'another tenant'} ({one['tier']}, {one['num_gpus']} GPUs)"
    rest = found["num_ahead"] - len(shown)
    if shown and rest:
        yield f"    and {rest} more"


def reasons(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons; an older server sends none."""
    for reason in found.get("reasons", ()):
        counted = "" if reason["num_gpus"] is None else f"{reason['num_gpus']} GPUs "
        mark = "→" if reason["token"] == found["binding"] else " "
        yield f"  {mark} {reason['token']}: {counted}{reason['text']}"


def change_words(change: Mapping[str, Any]) -> str:
    """Return a change as text; a newer server may send a field without text here."""
    field, value = change["field"], change["value"]
    if field == "topology.required" and value == FLEET_LEVEL:
        return "without --within"
    return f"with {_OPTIONS.get(field, field)} {f'{int(value)}s' if field == 'wall_time_s' else value}"
