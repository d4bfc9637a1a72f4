"""The outputs of an attempt's end, host by host: what was uploaded, and what is not there yet or never will be."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from sqlalchemy import Select, and_, func, select

from control.content.outputs import OUTPUTS_NOTICE
from control.core.paging import Part, Sort, SortKey, number_in
from control.core.unit_of_work import UnitOfWork
from control.jobs.read import row_of
from control.policy.policies import active_policy
from muster.db.models import Attempt, AttemptHost, Event, JobOutput, Node, StoredFolder
from muster.domain.ids import AttemptId, JobId, NodeId
from muster.domain.states import AttemptState, Contact, HostPartState
from muster.domain.stored_content import OUTPUTS_FACT, OUTPUTS_GIVEN_UP, FolderState, HostOutputsState

BY_RANK: Final = Sort((SortKey(AttemptHost.node_rank, attrgetter("node_rank"), number_in),))
"""The order of an attempt's hosts."""
_Hosts = Select[AttemptHost, Attempt, str, Contact, StoredFolder]
_TO_COME: Final = frozenset(
    {
        HostOutputsState.WAITING,
        HostOutputsState.UPLOADING,
        HostOutputsState.UNKNOWN,
        HostOutputsState.LOST,
        HostOutputsState.FAILED,
    }
)


@dataclass(frozen=True, slots=True)
class HostOutputs:
    """What is there of one host's outputs at the end of an attempt. ``why``: what is missing, as text; or empty.

    ``num_files`` and ``num_bytes``: as the host's manifest has them; None: it has sent none.
    """

    attempt: int
    attempt_id: AttemptId
    node_rank: int
    node_id: NodeId
    node_name: str
    state: HostOutputsState
    why: str
    num_files: int | None
    num_bytes: int | None

    @property
    def is_missing(self) -> bool:
        return self.state in _TO_COME


def outputs_of_hosts(unit: UnitOfWork, job_id: JobId, attempt: int | None, part: Part) -> list[HostOutputs]:
    """Return the hosts of an attempt of a visible job, by rank. ``attempt``: its number; None: the newest."""
    row_of(unit, job_id)
    return _read(unit, job_id, part.of(_hosts(job_id, attempt), BY_RANK))


def missing_of(unit: UnitOfWork, job_id: JobId, most: int) -> list[HostOutputs]:
    """Return hosts of a visible job's newest attempt whose outputs are missing, at most ``most``: once it has ended."""
    row_of(unit, job_id)
    is_whole = StoredFolder.state == FolderState.COMPLETE
    query = _hosts(job_id, None).where(Attempt.ended_at.is_not(None), is_whole.is_not(True))
    return [one for one in _read(unit, job_id, query.order_by(AttemptHost.node_rank)) if one.is_missing][:most]


def _hosts(job_id: JobId, attempt: int | None) -> _Hosts:
    newest = select(func.max(Attempt.number)).where(Attempt.job_id == job_id).scalar_subquery()
    is_of_the_end = and_(
        JobOutput.attempt_id == Attempt.id, JobOutput.node_rank == AttemptHost.node_rank, JobOutput.step.is_(None)
    )
    return (
        select(AttemptHost, Attempt, Node.name, Node.contact, StoredFolder)
        .join(Attempt, Attempt.id == AttemptHost.attempt_id)
        .join(Node, Node.id == AttemptHost.node_id)
        .outerjoin(JobOutput, is_of_the_end)
        .outerjoin(StoredFolder, StoredFolder.id == JobOutput.folder_id)
        .where(Attempt.job_id == job_id, Attempt.number == (newest if attempt is None else attempt))
    )


def _read(unit: UnitOfWork, job_id: JobId, query: _Hosts) -> list[HostOutputs]:
    rows = unit.session.execute(query).all()
    if not rows:
        return []
    hours = active_policy(unit.session).content.outputs_upload_hours
    given_up = _given_up(unit, job_id, rows[0][1].id)
    return [
        _found(host, ended, name, _about(host, ended, contact, folder, given_up, unit.now, hours), folder)
        for host, ended, name, contact, folder in rows
    ]


def _about(
    host: AttemptHost,
    attempt: Attempt,
    contact: Contact,
    folder: StoredFolder | None,
    given_up: Mapping[int, str],
    now: datetime,
    hours: int,
) -> tuple[HostOutputsState, str]:
    """Return the state of a host's outputs, and what is missing of them."""
    if folder is not None and folder.state is FolderState.COMPLETE:
        return HostOutputsState.COMPLETE, ""
    if host.claimed_at is None and attempt.state is AttemptState.ENDED:
        return HostOutputsState.NOTHING, ""
    if attempt.ended_at is None and host.state is not HostPartState.CLEAN:
        return HostOutputsState.RUNNING, ""
    if host.node_rank in given_up:
        return HostOutputsState.FAILED, given_up[host.node_rank]
    fact = (host.clean_proof or {}).get(OUTPUTS_FACT)
    is_clean = host.state is HostPartState.CLEAN
    if folder is None and is_clean and fact != HostOutputsState.WAITING:
        # A host of an earlier release reports nothing of its outputs.
        return HostOutputsState.NOTHING, ""
    what = "its outputs were not uploaded" if is_clean else "it never proved that the attempt has ended there"
    if attempt.ended_at is not None and attempt.ended_at + timedelta(hours=hours) < now:
        return HostOutputsState.LOST, f"{what} within {hours} hours, and are taken no more"
    if contact is Contact.LOST:
        return HostOutputsState.LOST, f"contact to it is lost: {what}. It does so if it is back within {hours} hours"
    if folder is not None:
        return HostOutputsState.UPLOADING, "it uploads them"
    if is_clean:
        return HostOutputsState.WAITING, "it has them, and begins to upload them"
    return HostOutputsState.UNKNOWN, "it still proves that the attempt has ended there"


def _given_up(unit: UnitOfWork, job_id: JobId, attempt_id: AttemptId) -> dict[int, str]:
    """Return the hosts that gave their outputs up, by rank, each with the reason that it reported."""
    query = select(Event.payload).where(
        Event.subject_id == job_id,
        Event.kind == OUTPUTS_NOTICE,
        Event.payload["attempt_id"].astext == attempt_id,
        Event.payload["found"].astext == "failed",
        Event.payload["step"].astext.is_(None),
        func.starts_with(Event.payload["words"].astext, OUTPUTS_GIVEN_UP),
    )
    return {int(payload["node_rank"]): str(payload["words"]) for payload in unit.session.scalars(query)}


def _found(
    host: AttemptHost, attempt: Attempt, name: str, about: tuple[HostOutputsState, str], folder: StoredFolder | None
) -> HostOutputs:
    return HostOutputs(
        attempt=attempt.number,
        attempt_id=attempt.id,
        node_rank=host.node_rank,
        node_id=host.node_id,
        node_name=name,
        state=about[0],
        why=about[1],
        num_files=None if folder is None else folder.num_files,
        num_bytes=None if folder is None else folder.num_bytes,
    )
