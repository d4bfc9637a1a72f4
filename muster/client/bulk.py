"""Changes of all nodes or jobs that a selector matches: the calls."""

from collections.abc import Mapping
from typing import Any

from muster import documents
from muster.client.calls import Call, answered, change


class BulkCalls:
    @answered
    def cordon_nodes(
        self, wanted: documents.NodesCordon, *, idempotency_key: str | None = None, dry_run: bool = False
    ) -> Call[documents.BulkAnswer]:
        """Keep all matching nodes out of new placements."""
        return _change("/v1/nodes/cordon", wanted, idempotency_key, dry_run=dry_run)

    @answered
    def uncordon_nodes(
        self, wanted: documents.NodesChange, *, idempotency_key: str | None = None, dry_run: bool = False
    ) -> Call[documents.BulkAnswer]:
        """End all cordons that persons set on matching nodes."""
        return _change("/v1/nodes/uncordon", wanted, idempotency_key, dry_run=dry_run)

    @answered
    def drain_nodes(
        self, wanted: documents.NodesDrain, *, idempotency_key: str | None = None, dry_run: bool = False
    ) -> Call[documents.BulkAnswer]:
        """Cordon all matching nodes, and ask every job there to leave."""
        return _change("/v1/nodes/drain", wanted, idempotency_key, dry_run=dry_run)

    @answered
    def cancel_jobs(
        self, wanted: documents.JobsChange, *, idempotency_key: str | None = None, dry_run: bool = False
    ) -> Call[documents.BulkAnswer]:
        """Cancel all matching jobs that have not ended."""
        return _change("/v1/jobs/cancel", wanted, idempotency_key, dry_run=dry_run)

    @answered
    def release_jobs(
        self, wanted: documents.JobsChange, *, idempotency_key: str | None = None, dry_run: bool = False
    ) -> Call[documents.BulkAnswer]:
        """Release all matching jobs from HELD."""
        return _change("/v1/jobs/release", wanted, idempotency_key, dry_run=dry_run)

    @answered
    def hold_jobs(
        self, wanted: documents.JobsChange, *, idempotency_key: str | None = None, dry_run: bool = False
    ) -> Call[documents.BulkAnswer]:
        """Hold all matching jobs that wait for GPUs."""
        return _change("/v1/jobs/hold", wanted, idempotency_key, dry_run=dry_run)

    @answered
    def retry_jobs(
        self, wanted: documents.JobsChange, *, idempotency_key: str | None = None, dry_run: bool = False
    ) -> Call[documents.BulkAnswer]:
        """Submit all matching jobs again that failed or were cancelled."""
        return _change("/v1/jobs/retry", wanted, idempotency_key, dry_run=dry_run)


def _change(path: str, wanted: Mapping[str, Any], key: str | None, *, dry_run: bool) -> Call[documents.BulkAnswer]:
    return change("POST", path, documents.BulkAnswer, body=wanted, dry_run=dry_run, key=key)
