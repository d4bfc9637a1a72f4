"""``muster job pin`` and ``unpin`` choose the checkpoints that a job's program must not remove."""

from typing import Annotated

import typer

from muster import documents
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.names import JobId
from muster.cli.framework.output import Done, DryRun
from muster.cli.framework.profile import open_client
from muster.cli.job.job_options import Reason
from muster.client.rest import RestClient

Which = Annotated[str, typer.Argument(help=parameter_help("checkpoint_id"), show_default=False)]


def pin(job_id: JobId, checkpoint: Which, reason: Reason = None, *, dry_run: DryRun = False) -> Done:
    """Pin a checkpoint: retention never removes it. The running program marks it in its store, so it stays without a
    server.
    """
    with open_client() as client:
        found = client.pin_checkpoint(job_id, _id_of(client, job_id, checkpoint), reason, dry_run=dry_run)
    said = [f"{found['generation']}  pinned" + ("" if found["pin_applied_at"] else "; its program has yet to mark it")]
    if found["status"] == "TAINTED":
        said.append(f"Warning: it is TAINTED, and no training continues from it: {found['reason']}")
    return Done(found, "\n".join(said))


def unpin(job_id: JobId, checkpoint: Which, *, dry_run: DryRun = False) -> Done:
    """Unpin a checkpoint: retention may remove it again, after newer ones are whole."""
    with open_client() as client:
        found = client.unpin_checkpoint(job_id, _id_of(client, job_id, checkpoint), dry_run=dry_run)
    return Done(
        found, f"{found['generation']}  not pinned" + ("; its mark is still there" if found["pin_applied_at"] else "")
    )


def _id_of(client: RestClient, job_id: str, checkpoint: str) -> str:
    """Return a checkpoint's id; for a step, the newest of its generations that is neither expired nor
    damaged, if any.
    """
    if checkpoint.startswith("ckpt_"):
        return checkpoint
    found = [each for each in client.checkpoints(job_id) if checkpoint in {each["generation"], str(each["step"])}]
    if not found:
        steps = ", ".join(str(each["step"]) for each in client.checkpoints(job_id)[:5]) or "none"
        raise CommandError(
            f"the job has no checkpoint {checkpoint}", f"The newest are of the steps: {steps}.", Exit.NOT_FOUND
        )
    return min(found, key=_is_over)["id"]


def _is_over(checkpoint: documents.Checkpoint) -> bool:
    return checkpoint["status"] in {"REJECTED", "EXPIRED"}
