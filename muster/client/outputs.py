"""Outputs and checkpoints of jobs: the calls. ``muster.client.output_downloads`` fetches outputs with them,
``muster.client.checkpoint_downloads`` checkpoints.
"""

from collections.abc import Sequence
from dataclasses import replace

from muster import documents
from muster.client.calls import Call, answered, pages, post_query, walked


class OutputCalls:
    @walked
    def outputs(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        step: str | None = None,
        node_rank: int | None = None,
        limit: int | None = None,
    ) -> Call[documents.JobOutputs]:
        """Return outputs of a job, the newest first. ``step``: a number, or ``final``. ``limit``: of a page."""
        path = "/v1/jobs/{job_id}/outputs"
        query = {"attempt": attempt, "step": step, "node_rank": node_rank, "limit": limit, "cursor": None}
        return pages(path, documents.JobOutputsPage, documents.JobOutputs, {"job_id": job_id}, query=query)

    @walked
    def files(
        self,
        job_id: str,
        *,
        prefix: str | None = None,
        attempt: int | None = None,
        step: str | None = None,
        node_rank: int | None = None,
        limit: int | None = None,
    ) -> Call[documents.JobFile]:
        """Files of a job's outputs whose paths begin with ``prefix``. ``limit``: of a page."""
        path = "/v1/jobs/{job_id}/files"
        places = {"attempt": attempt, "step": step, "node_rank": node_rank}
        query = {"prefix": prefix, **places, "limit": limit, "cursor": None}
        return pages(path, documents.JobFilePage, documents.JobFile, {"job_id": job_id}, query=query)

    @walked
    def output_hosts(
        self, job_id: str, *, attempt: int | None = None, limit: int | None = None
    ) -> Call[documents.HostOutputs]:
        """Hosts of an attempt, by rank, with what is there of the outputs of its end. ``attempt``: None: the newest."""
        path = "/v1/jobs/{job_id}/output-hosts"
        query = {"attempt": attempt, "limit": limit, "cursor": None}
        return pages(path, documents.HostOutputsPage, documents.HostOutputs, {"job_id": job_id}, query=query)

    @answered
    def sign_output_downloads(
        self, job_id: str, outputs_id: int, chunks: Sequence[str]
    ) -> Call[documents.OutputDownloads]:
        """Signed downloads of the manifest and of chunks of one collection. Each call is audited."""
        body: documents.ChunkNames = {"chunks": list(chunks)}
        call = post_query("/v1/jobs/{job_id}/outputs/{outputs_id}/downloads", documents.OutputDownloads, body=body)
        return replace(call, path_values={"job_id": job_id, "outputs_id": str(outputs_id)})

    @answered
    def sign_checkpoint_downloads(
        self, job_id: str, checkpoint_id: str, files: Sequence[str], *, unverified: bool = False
    ) -> Call[documents.CheckpointDownloads]:
        """Signed downloads of files of one checkpoint, first of `MANIFEST.json`. Each call is audited."""
        body: documents.CheckpointFileNames = {"files": list(files), "unverified": unverified}
        path = "/v1/jobs/{job_id}/checkpoints/{checkpoint_id}/downloads"
        call = post_query(path, documents.CheckpointDownloads, body=body)
        return replace(call, path_values={"job_id": job_id, "checkpoint_id": checkpoint_id})
