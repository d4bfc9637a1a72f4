"""A tenant's program against the client that was generated from our document: submits a job, follows it to its end.

Run by the generator's environment, where nothing of Muster is, as ``python follow_job.py URL``. MUSTER_API_KEY is the
key. Standard input is the program's command line, as a JSON list. What it learned it prints as one JSON object.
"""

import json
import os
import sys
import time
from typing import Any

from muster_generated import AuthenticatedClient  # type: ignore[import-not-found]  # made by the test
from muster_generated.api.jobs import job_events, job_logs, list_jobs, show_job, submit_job  # type: ignore[import-not-found]
from muster_generated.models import (  # type: ignore[import-not-found]
    ChangedJob,
    JobDetail,
    JobState,
    JobSubmission,
    LauncherKind,
    Problem,
    Program,
)

OVER = {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
PATIENCE_S = 300.0


def submit(client: Any, argv: list[str]) -> Any:
    program = Program(launcher=LauncherKind.COMMAND, argv=argv)
    body = JobSubmission(name="generated", program=program)
    first, again = (submit_job.sync(client=client, body=body, idempotency_key="once") for _ in range(2))
    assert isinstance(first, ChangedJob), first
    assert isinstance(again, ChangedJob), again
    assert again.id == first.id, "the same key makes no second job"
    return first


def follow(client: Any, job_id: str) -> tuple[Any, list[str]]:
    """The job once it is over, and what happened to it, in the order of positions."""
    deadline, after = time.monotonic() + PATIENCE_S, 0
    kinds: list[str] = []
    while time.monotonic() < deadline:
        job = show_job.sync(job_id, client=client)
        assert isinstance(job, JobDetail), job
        told = job_events.sync(job_id, client=client, after=after)
        after = told.next_after
        kinds += [event.kind for event in told.items]
        if job.state in OVER and f"job.{job.state.value.lower()}" in kinds:
            return job, kinds
        time.sleep(0.2)
    sys.exit(f"it did not end: {kinds}")


def main() -> None:
    client = AuthenticatedClient(sys.argv[1], os.environ["MUSTER_API_KEY"], raise_on_unexpected_status=True)
    submitted = submit(client, json.load(sys.stdin))
    job, kinds = follow(client, submitted.id)
    pieces = job_logs.sync(job.id, client=client)
    refused = show_job.sync("job_00000000000000000000000000", client=client)
    assert isinstance(refused, Problem), refused
    learned = {
        "id": job.id,
        "state": job.state.value,
        "cause": job.attempts[-1].cause.value,
        "printed": "".join(piece.text for piece in pieces.items),
        "events": kinds,
        "listed": [each.id for each in list_jobs.sync(client=client).items],
        "refused": [refused.status, refused.code],
    }
    sys.stdout.write(json.dumps(learned) + "\n")


if __name__ == "__main__":
    main()
