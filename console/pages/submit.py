"""Page that submits a job: a form of all fields of its schema, its plan next to it, and the same job as a file."""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from api.changes import Answer, Change
from api.dependencies import dependencies_of
from api.reading import id_in, reading, reading_plan
from console import job_fields, job_form, plan_texts
from console.forms import Form
from console.job_templates import TEMPLATES, template_of
from console.pages.install import address_of
from console.rendering import pages_of
from console.session import Viewer, changes, sees
from control.content.bundles import BundleFilter, list_bundles
from control.content.types import FolderFound
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.jobs import job_plans, jobs, queue_views, read
from control.jobs.listing import JobFilter, ListedJob, list_jobs
from control.secrets.tenant_secrets import list_secrets
from control.tenants.read import TenantRecord, list_tenants
from muster.documents.job_files import file_document, yaml_text
from muster.domain.errors import MusterError, NotFoundError, TenantLimitError, ValidationFailedError
from muster.domain.ids import JobId, TenantId
from muster.domain.job.file_schema import PATH as SCHEMA_PATH
from muster.domain.job.submission import JobSubmission
from muster.domain.principals import Permission
from muster.domain.residency import StorePlace
from muster.domain.stored_content import FolderState
from muster.domain.validation import validated

router = APIRouter()
JOBS_SHOWN: Final = 20
BUNDLES_SHOWN: Final = 50
SECRETS_SHOWN: Final = 200
_ONCE: Final = re.compile(r"[0-9a-f]{32}")
_NOT_OF_A_FILE: Final = ("tenant_id", "copied_from")
_UNKEPT: Final = (
    "This job has a text that the form cannot hold as it is, such as an argument with a line break: it would be "
    "changed. `muster job copy` submits it as it is."
)
Submitter = Annotated[Viewer, sees(Permission.JOB_SUBMIT)]


@dataclass(frozen=True, slots=True)
class Draft:
    """A job as typed. ``faults``: by the pointer of their field, and by "" in general. ``once``: of this page alone.

    ``document``: what the texts make, if they can be read. ``notice``: about the job that it begins from.
    """

    texts: Mapping[str, str]
    once: str
    copied_from: str | None = None
    document: Mapping[str, Any] | None = None
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict)
    status: int = 200
    plan: plan_texts.PlanShown | None = None
    notice: str = ""


class _Choices(NamedTuple):
    tiers: Sequence[str]
    levels: Sequence[str]
    tenants: Sequence[TenantRecord]
    bundles: Sequence[FolderFound]
    secret_names: Sequence[str]
    earlier: Sequence[ListedJob]


@router.get("/submit")
def submit_page(
    request: Request, viewer: Submitter, begin: Annotated[str, Query(max_length=64, pattern=r"^[!-~]*$")] = ""
) -> Response:
    """Show the form. ``begin``: the key of a template, or the id of a job of which it is to be a copy."""
    return _shown(request, viewer, _begun(request, viewer, begin))


@router.post("/submit")
def submit(request: Request, viewer: Annotated[Viewer, changes(Permission.JOB_SUBMIT)], fields: Form) -> Response:
    """Plan the job, or with ``step=submit`` submit it, or with ``step=file`` answer it as a file."""
    draft = _draft_in(fields)
    try:
        document = job_form.document_of(draft.texts)
        if draft.copied_from is not None:
            document["copied_from"] = draft.copied_from
        draft = replace(draft, document=document)
        if fields.get("step") == "file":
            return _file_of(request, document)
        submission = job_form.submission_of(document)
        if fields.get("step") == "submit":
            return _submitted(request, viewer, submission, draft)
        return _shown(request, viewer, replace(draft, plan=_planned(request, viewer, submission)))
    except (ValidationFailedError, TenantLimitError) as fault:
        return _shown(request, viewer, replace(draft, faults=_faults_of(fault), status=fault.status))


def _faults_of(fault: MusterError) -> Mapping[str, Sequence[str]]:
    if isinstance(fault, ValidationFailedError):
        return job_form.faults_by_field(fault)
    return {"": [f"{fault.detail}. {fault.suggestion}"]}


def _begun(request: Request, viewer: Viewer, begin: str) -> Draft:
    """Return an empty draft, a template's, or a copy. Raises ``NotFoundError``: no such template or job."""
    once = secrets.token_hex(16)
    if not begin:
        return Draft(job_form.texts_of({}), once)
    if (template := template_of(begin)) is not None:
        return Draft(job_form.texts_of(template.document), once, document=template.document)
    job_id = id_in("job", begin)
    if job_id is None:
        raise NotFoundError("there is no such template, and no such job")
    found_id = JobId(job_id)
    original = reading(
        dependencies_of(request).units, viewer.principal, jobs.READ, lambda unit: read.submitted(unit, found_id)
    )
    document = _without_defaults(original.spec)
    if viewer.principal.sees_all_tenants:
        document["tenant_id"] = original.tenant_id
    document["copied_from"] = original.id
    notice = "" if job_form.is_kept(document) else _UNKEPT
    return Draft(job_form.texts_of(document), once, original.id, document, notice=notice)


def _without_defaults(spec: Mapping[str, Any]) -> dict[str, Any]:
    known = validated(JobSubmission, spec)
    return known.spec.model_dump(mode="json", exclude_defaults=True)


def _draft_in(fields: Mapping[str, str]) -> Draft:
    once = fields.get("once", "")
    copied_from = id_in("job", fields.get("copied_from", ""))
    return Draft(job_form.texts_in(fields), once if _ONCE.fullmatch(once) else secrets.token_hex(16), copied_from)


def _planned(request: Request, viewer: Viewer, submission: JobSubmission) -> plan_texts.PlanShown:
    """Return the plan. Raises as the submission would: it is tried, and rolled back."""
    units, principal = dependencies_of(request).units, viewer.principal
    owner, store = _owner_of(submission), dependencies_of(request).store_place
    reading(units, principal, jobs.SUBMIT, lambda unit: _submit(unit, submission, store))
    found = reading_plan(
        units,
        principal,
        job_plans.PLAN,
        lambda unit: job_plans.plan_job(unit, submission.spec, tenant_id=owner, store=store),
    )
    return plan_texts.shown(viewer, found, since=None)


def _submitted(request: Request, viewer: Viewer, submission: JobSubmission, draft: Draft) -> Response:
    """Submit it once for this page: the same form that is sent again leads to the same job."""
    digest = hashlib.sha256(json.dumps(draft.document, sort_keys=True).encode()).hexdigest()
    change = Change(
        units=dependencies_of(request).units,
        key=f"console-{draft.once}-{digest}",
        is_dry_run=False,
        method_path="POST /console/submit",
        body_sha256=bytes.fromhex(digest),
    )
    answer = change.run(
        viewer.principal,
        jobs.SUBMIT,
        lambda unit: _submit(unit, submission, dependencies_of(request).store_place),
        lambda job: Answer({"id": job.id}, 201, location=f"/console/jobs/{job.id}"),
    )
    return RedirectResponse(f"{answer.headers['Location']}?done=It+is+submitted.", status_code=303)


def _submit(unit: UnitOfWork, submission: JobSubmission, store: StorePlace | None) -> Any:
    copied_from = None if submission.copied_from is None else JobId(submission.copied_from)
    return jobs.submit(unit, submission.spec, tenant_id=_owner_of(submission), copied_from=copied_from, store=store)


def _owner_of(submission: JobSubmission) -> TenantId | None:
    return None if submission.tenant_id is None else TenantId(submission.tenant_id)


def _file_of(request: Request, document: Mapping[str, Any]) -> Response:
    name = document.get("name", "job")
    headers = {"Content-Disposition": f'attachment; filename="{re.sub("[^A-Za-z0-9._-]", "-", str(name))}.yaml"'}
    return Response(_file_text(request, document), media_type="application/yaml; charset=utf-8", headers=headers)


def _file_text(request: Request, document: Mapping[str, Any]) -> str:
    """Return the job file, which names no tenant: the command names it by an option."""
    own = {name: value for name, value in document.items() if name not in _NOT_OF_A_FILE}
    return f"# yaml-language-server: $schema={address_of(request)}{SCHEMA_PATH}\n{yaml_text(file_document(own))}\n"


def _shown(request: Request, viewer: Viewer, draft: Draft) -> Response:
    tenant_id = TenantId(draft.texts["/tenant_id"]) if draft.texts["/tenant_id"] else None
    units = dependencies_of(request).units
    choices = reading(units, viewer.principal, queue_views.READ, lambda unit: _choices(unit, tenant_id))
    has_file = draft.document is not None and bool(draft.document.get("name"))
    owner = next((one.name for one in choices.tenants if one.id == draft.texts["/tenant_id"]), "")
    return pages_of(request).page(
        request,
        "submit.html",
        viewer,
        status=draft.status,
        place="jobs",
        draft=draft,
        groups=job_fields.groups(),
        unfolded=job_form.unfolded(draft.texts, draft.faults),
        labels={each.pointer: each.label for each in job_fields.fields()},
        ids={each.pointer: each.html_id for each in job_fields.fields()},
        choices=choices,
        known=_known(choices),
        templates=TEMPLATES,
        begin=request.query_params.get("begin"),
        file_text=_file_text(request, draft.document) if has_file and draft.document is not None else "",
        owner_name=owner,
        plan=draft.plan,
        sees_all=viewer.principal.sees_all_tenants,
    )


def _choices(unit: UnitOfWork, tenant_id: TenantId | None) -> _Choices:
    """Return what there is to choose from. ``tenant_id``: whose, where an operator has chosen one."""
    sees_all = unit.principal.sees_all_tenants
    bundles = list_bundles(unit, BundleFilter(tenant_id), Part(BUNDLES_SHOWN))
    return _Choices(
        tiers=read.known_tiers(unit),
        levels=read.known_levels(unit),
        tenants=list_tenants(unit) if sees_all else (),
        bundles=[each for each in bundles if each.folder.state is FolderState.COMPLETE],
        secret_names=sorted({each.name for each in list_secrets(unit, Part(SECRETS_SHOWN), tenant_id=tenant_id)}),
        earlier=list_jobs(unit, JobFilter(), limit=JOBS_SHOWN),
    )


def _known(choices: _Choices) -> Mapping[str, Sequence[str]]:
    """Return the values to choose from by the pointer of their field."""
    levels = dict.fromkeys(("/topology/required", "/topology/preferred", "/topology/balance"), choices.levels)
    names = dict.fromkeys(("/checkpoint/credentials", "/checkpoint/encryption_keys"), choices.secret_names)
    return {"/tier": choices.tiers, **levels, **names}
