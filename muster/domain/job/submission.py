"""A job as it is submitted: its specification, whose job it is, and where it was copied from."""

from pydantic import Field

from muster.domain.job.spec import JobSpec
from muster.domain.strict import Text


class JobSubmission(JobSpec):
    """A job as it is submitted. ``tenant_id`` is for operators, who submit for a tenant."""

    tenant_id: Text | None = None
    copied_from: Text | None = Field(None, description="The id of the job that this one is a copy of.")

    @property
    def spec(self) -> JobSpec:
        """The specification, made of the parsed parts: a shape knows which of its fields were given."""
        return JobSpec.model_validate({name: getattr(self, name) for name in JobSpec.model_fields})
