"""Waiting for a job: why it waits itself, its progress, its end."""

import time
from typing import TYPE_CHECKING, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.profile import open_client
from muster.cli.framework.progress import Progress, progress
from muster.cli.framework.tables import Document, printable

if TYPE_CHECKING:
    from muster.client.rest import RestClient

END_CODES: Final = {"SUCCEEDED": Exit.OK, "FAILED": Exit.JOB_FAILED, "CANCELLED": Exit.JOB_CANCELLED}
WAIT_POLL_S: Final = 0.5
_WAITS: Final = ("QUEUED", "HELD")


def wait_for_end(job_id: str, timeout_s: float = 86_400.0) -> int:
    """Wait for a job's end and return its exit code. Raises ``CommandError`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    said = ""
    with open_client() as client, progress(job_id) as bar:
        while True:
            job = client.job(job_id)
            if job["state"] in END_CODES:
                break
            if job["state"] == "HELD":
                said = show_wait(job, said)
            if time.monotonic() > deadline:
                words = f"{job_id} is still {job['state']}: {printable(job['state_reason'])}"
                raise CommandError(words, "It continues; --timeout is over.")
            _show(client, job, bar)
            time.sleep(WAIT_POLL_S)
    typer.echo(state_line(job))
    return END_CODES[job["state"]]


def state_line(job: Document) -> str:
    """Return a job's state with its reason, which may quote the program's last words."""
    return f"{job['id']}  {job['state']}: {printable(job['state_reason'])}"


def show_wait(job: Document, shown: str) -> str:
    """Show on the error stream why a job waits, each reason once, and return the last text."""
    words = state_line(job)
    if job["state"] not in _WAITS or words == shown:
        return shown
    typer.echo(words, err=True)
    if job["state"] == "HELD":
        typer.echo(f"It waits for a person: `muster job release {job['id']}`, or `muster job cancel`.", err=True)
    return words


def _show(client: "RestClient", job: Document, bar: Progress) -> None:
    """Show the job's step, if its program reports one; only the program knows the number of steps."""
    if job["state"] == "HELD":
        return
    steps = [rank["step"] for rank in client.ranks(job["id"]) if rank["step"] is not None]
    attempt = f", attempt {job['attempts'][-1]['number']}" if job["attempts"] else ""
    at = f", step {min(steps)}" if steps and job["state"] == "ACTIVE" else ""
    bar.report(f"{job['state']}{attempt}{at}")
