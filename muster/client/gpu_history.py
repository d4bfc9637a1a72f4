"""The calls about the history of GPUs, and about cohorts."""

from typing import Unpack

from muster import documents
from muster.client.calls import Call, Within, answered, listed, pages, read, walked


class GpuPastCalls:
    @walked
    def gpu_jobs(self, uuid: str, *, limit: int | None = None, **within: Unpack[Within]) -> Call[documents.GpuJob]:
        """Every attempt that had the GPU, the newest first, with why it ended."""
        query = {"limit": limit, **within, "cursor": None}
        return pages("/v1/gpus/{uuid}/jobs", documents.GpuJobPage, documents.GpuJob, {"uuid": uuid}, query=query)

    @walked
    def gpu_standings(self, uuid: str, *, limit: int | None = None, **within: Unpack[Within]) -> Call[documents.Move]:
        """Every move of its standing, the newest first, with its reason, evidence, policy and actor."""
        query = {"limit": limit, **within, "cursor": None}
        return pages("/v1/gpus/{uuid}/standings", documents.MovePage, documents.Move, {"uuid": uuid}, query=query)

    @walked
    def gpu_burn_ins(
        self, uuid: str, *, limit: int | None = None, **within: Unpack[Within]
    ) -> Call[documents.ComparedBurnIn]:
        """Its burn-ins, the newest order first, each figure with the newest ones of its cohort."""
        query = {"limit": limit, **within, "cursor": None}
        page, path = documents.ComparedBurnInPage, "/v1/gpus/{uuid}/burn-ins"
        return pages(path, page, documents.ComparedBurnIn, {"uuid": uuid}, query=query)

    @listed
    def cohorts(self) -> Call[documents.Cohort]:
        """List cohorts by key, with the equal attributes of their GPUs and the numbers of GPUs by standing."""
        return pages("/v1/cohorts", documents.CohortPage, documents.Cohort)

    @listed
    def cohort_drift(self) -> Call[documents.Drift]:
        """List the attributes in which GPUs differ from most of their model.

        The attribute that excludes most GPUs from a gang comes first.
        """
        return pages("/v1/cohorts/drift", documents.DriftPage, documents.Drift)

    @answered
    def cohort(self, key: str) -> Call[documents.CohortDetail]:
        """One by its whole key, with the least, median and greatest of its GPUs' newest burn-ins."""
        return read("/v1/cohorts/{key}", documents.CohortDetail, {"key": key})
