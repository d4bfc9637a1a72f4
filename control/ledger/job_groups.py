"""Groups of jobs by which costs are summed up: the project, which a label names, and the class."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from sqlalchemy import ARRAY, Text, any_, func, literal, select
from sqlalchemy.orm import Session

from muster.db.models import Job

PROJECT_LABEL: Final = "project"


class JobGroup(NamedTuple):
    """Empty texts: the job has no such label, or an earlier release wrote its row."""

    project: str
    job_class: str


def job_groups(session: Session, ids: set[str]) -> Mapping[str, JobGroup]:
    """Return project and class of jobs by id; a job that was removed since has none."""
    labels = func.coalesce(Job.labels, Job.spec["labels"])  # release 0.1.0 stored labels in the specification alone
    query = select(Job.id, labels[PROJECT_LABEL].astext, Job.job_class)
    rows = session.execute(query.where(Job.id == any_(literal(sorted(ids), ARRAY(Text)))))
    return {str(job_id): JobGroup(project or "", job_class or "") for job_id, project, job_class in rows}
