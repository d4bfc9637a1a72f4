"""The history of a GPU in the API: its attempts, its transitions, its burn-ins compared with the cohort's."""

from typing import Annotated

from typing_extensions import TypedDict

from muster.documents.cohorts import Spread
from muster.documents.fields import Moment, OneOf, Page
from muster.documents.gpus import BurnIn, Move
from muster.domain.states import AllocationState, AttemptState, Cause, StopReason


class GpuJob(TypedDict):
    """An attempt that had the GPU. ``state``: of this GPU's assignment to it; ``proof``: of the cause, as text."""

    job_id: str
    job_name: str
    tenant_id: str
    tier: str
    attempt_id: str
    attempt_number: int
    attempt_state: Annotated[str, OneOf(AttemptState)]
    cause: Annotated[str, OneOf(Cause)] | None
    proof: str | None
    stop_reason: Annotated[str, OneOf(StopReason)] | None
    placed_at: Moment
    running_at: Moment | None
    ended_at: Moment | None
    node_id: str
    node_rank: int
    local_index: int
    state: Annotated[str, OneOf(AllocationState)]


class GpuJobPage(Page):
    items: list[GpuJob]


class MovePage(Page):
    items: list[Move]


class ComparedRate(TypedDict):
    """A rate in comparison.

    ``cohort``: null where no GPU's newest burn-in has it. ``is_outlier``: beyond the tolerance.
    """

    measure: str
    value: float
    cohort: Spread | None
    is_outlier: bool


class ComparedBurnIn(BurnIn):
    compared: list[ComparedRate]


class ComparedBurnInPage(Page):
    """A page of burn-ins. ``cohort_key``: the cohort of the GPU now."""

    cohort_key: str
    items: list[ComparedBurnIn]
