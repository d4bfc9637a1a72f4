"""``muster job``: submit, list, show, logs, cancel, wait."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from muster.cli.durations import seconds_of
from muster.cli.exits import CommandError, Exit
from muster.cli.output import AsJson, age, print_json, print_table, say_consequences
from muster.cli.pending import idempotency_key_for, is_done
from muster.cli.profile import find_profile, open_client
from muster.client.rest import RestClient
from muster.client.transport import Problem, UnreachableError

app = typer.Typer(help="Jobs: submit, watch, cancel.", no_args_is_help=True)
_END_CODES: Final = {"SUCCEEDED": Exit.OK, "FAILED": Exit.JOB_FAILED, "CANCELLED": Exit.JOB_CANCELLED}
_WAITS: Final = ("QUEUED", "HELD")
_WAIT_LOOK_S: Final = 2.0
JobId = Annotated[str, typer.Argument(help="The job's id, job_…")]


@app.command("submit", context_settings={"allow_interspersed_args": False})
def submit(
    program: Annotated[list[str], typer.Argument(help="SCRIPT [ARGS…], or with --command the whole command.")],
    name: Annotated[str | None, typer.Option(help="Default: the script's name.")] = None,
    nodes: Annotated[int, typer.Option(min=1)] = 1,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs a node.")] = 1,
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks a node; default: one a GPU.")] = None,
    tier: Annotated[str, typer.Option()] = "on_demand",
    max_restarts: Annotated[int, typer.Option(min=0, help="New attempts that the job's own faults may cost.")] = 0,
    wall_time: Annotated[str | None, typer.Option(help="Such as 10m or 2h.")] = None,
    grace: Annotated[str | None, typer.Option(help="Between SIGTERM and SIGKILL, such as 30s.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="KEY=VALUE; may be repeated.")] = None,
    python: Annotated[Path | None, typer.Option(help="The interpreter with torch.")] = None,
    workdir: Annotated[Path | None, typer.Option(help="Default: this folder.")] = None,
    tenant: Annotated[str | None, typer.Option(help="For operators: the tenant's id.")] = None,
    *,
    command: Annotated[bool, typer.Option("--command", help="Run as it is, without torchrun.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print its logs until it ends.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and say what would happen.")] = False,
    as_json: AsJson = False,
) -> int:
    """Submit a job. [bold]muster job submit -f --gpus 2 -- train.py --steps 100[/]"""
    spec: dict[str, Any] = {
        "name": name or _name_of(program[0]),
        "program": _program(program, env or [], python, workdir, is_command=command),
        "shape": {"nodes": nodes, "gpus_per_node": gpus, "ranks_per_node": ranks},
        "tier": tier,
        "restart": {"max_restarts": max_restarts},
        "wall_time_s": seconds_of(wall_time),
        "stop_grace_s": seconds_of(grace),
    }
    if tenant is not None:
        spec["tenant_id"] = tenant
    with open_client() as client:
        if dry_run:
            say_consequences(client.submit_job(spec, dry_run=True))
            return Exit.OK
        job = _submit_once(client, spec)
        if as_json:
            print_json(job)
        else:
            typer.echo(f"{job['id']}  {job['name']}  {job['state']}")
        return _follow(client, job["id"], None, None) if follow else Exit.OK


def _submit_once(client: RestClient, spec: dict[str, Any]) -> dict[str, Any]:
    """Interrupted and repeated, the same command is one job: its key is on disk before it is sent."""
    key = idempotency_key_for(find_profile().api_url, spec)
    job = client.submit_job(spec, idempotency_key=key)
    is_done(key)
    return job


def _name_of(program: str) -> str:
    stem = re.sub(r"[^a-z0-9._-]+", "-", Path(program).stem.lower()).strip("._-")
    return stem[:63] or "job"


def _program(
    words: list[str], env: list[str], python: Path | None, workdir: Path | None, *, is_command: bool
) -> dict[str, Any]:
    pairs = dict(_pair(item) for item in env)
    shared = {
        "env": pairs,
        "python": None if python is None else str(python.absolute()),
        "working_dir": str((workdir or Path.cwd()).resolve()),
    }
    if is_command:
        return {"launcher": "command", "argv": words, **shared}
    return {"launcher": "torchrun", "script": str(Path(words[0]).resolve()), "args": words[1:], **shared}


def _pair(item: str) -> tuple[str, str]:
    key, separator, value = item.partition("=")
    if not separator:
        message = f"--env {item!r} is not KEY=VALUE"
        raise typer.BadParameter(message)
    return key, value


@app.command("list")
def list_jobs(
    state: Annotated[list[str] | None, typer.Option(help="QUEUED, ACTIVE, …; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 20,
    *,
    as_json: AsJson = False,
) -> None:
    """The newest jobs first."""
    with open_client() as client:
        found = []
        for job in client.jobs(state=[name.upper() for name in state or []] or None, limit=min(limit, 200)):
            found.append(job)
            if len(found) == limit:
                break
    if as_json:
        print_json(found)
        return
    rows = [(job["id"], job["name"], job["tier"], job["state"], age(job["created_at"])) for job in found]
    print_table(
        ("JOB", "NAME", "TIER", "STATE", "AGE"), rows, empty="No jobs yet. `muster job submit -- SCRIPT` makes one."
    )


@app.command("show")
def show(job_id: JobId, *, as_json: AsJson = False) -> None:
    """One job with the timeline of its attempts."""
    with open_client() as client:
        job = client.job(job_id)
    if as_json:
        print_json(job)
        return
    typer.echo(f"{job['id']}  {job['name']}  {job['state']}")
    typer.echo(f"  {job['state_reason']}")
    shape = job["spec"]["shape"]
    typer.echo(
        f"  tier {job['tier']}, {shape['nodes']} × {shape['gpus_per_node']} GPUs,"
        f" submitted {age(job['created_at'])} ago"
    )
    for attempt in job["attempts"]:
        cause = f"  {attempt['cause']}: {attempt['proof']}" if attempt["cause"] else ""
        typer.echo(f"  attempt {attempt['number']}  {attempt['state']}{cause}")
        for host in attempt["hosts"]:
            typer.echo(f"    {host['node_name']}: {host['state']}, {len(host['gpus'])} GPUs")
            if attempt is job["attempts"][-1]:
                for gpu in host["gpus"]:
                    typer.echo(f"      {gpu}")


@app.command("checkpoints")
def checkpoints(job_id: JobId, *, as_json: AsJson = False) -> None:
    """Every generation with its status, and why one is never resumed from."""
    with open_client() as client:
        found = client.checkpoints(job_id)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            item["step"],
            item["status"],
            item["generation"],
            age(item["committed_at"]),
            item["reason"] or "",
        )
        for item in found
    ]
    print_table(("STEP", "STATUS", "GENERATION", "AGE", "WHY"), rows, empty="No checkpoint was committed.")


@app.command("logs")
def logs(
    job_id: JobId,
    rank: Annotated[int | None, typer.Option(min=0, help="This rank alone.")] = None,
    attempt: Annotated[str | None, typer.Option(help="This attempt alone, att_…")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f")] = False,
) -> int:
    """What the ranks print; several ranks are told apart by a prefix."""
    with open_client() as client:
        if follow:
            return _follow(client, job_id, rank, attempt)
        stream = None if rank is None else str(rank)
        _print_pieces(client.logs(job_id, stream=stream, attempt_id=attempt), with_prefix=rank is None)
    return Exit.OK


def _follow(client: RestClient, job_id: str, rank: int | None, attempt: str | None) -> int:
    stream = None if rank is None else str(rank)
    with _waits_told(job_id):
        _print_pieces(client.follow_logs(job_id, stream=stream, attempt_id=attempt), with_prefix=rank is None)
    job = client.job(job_id)
    typer.echo(f"{job['id']}  {job['state']}: {job['state_reason']}", err=True)
    return _END_CODES.get(job["state"], Exit.FAILED)


@contextmanager
def _waits_told(job_id: str) -> Iterator[None]:
    """While logs are followed: why the job waits, on the error stream, since its programs cannot say it."""
    is_over = threading.Event()
    teller = threading.Thread(target=_tell_waits, args=(job_id, is_over), daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_over.set()
        teller.join(_WAIT_LOOK_S)


def _tell_waits(job_id: str, is_over: threading.Event) -> None:
    said = ""
    with open_client() as client:
        while not is_over.wait(_WAIT_LOOK_S):
            try:
                said = _say_wait(client.job(job_id), said)
            except (Problem, UnreachableError):
                continue  # the stream beside it says so, or comes back


def _say_wait(job: dict[str, Any], said: str) -> str:
    """What was said last: each reason once."""
    words = f"{job['id']}  {job['state']}: {job['state_reason']}"
    if job["state"] not in _WAITS or words == said:
        return said
    typer.echo(words, err=True)
    if job["state"] == "HELD":
        typer.echo(f"It waits for a person: `muster job release {job['id']}`, or `muster job cancel`.", err=True)
    return words


def _print_pieces(pieces: Any, *, with_prefix: bool) -> None:
    """Whole lines, each with its stream's name; a stream's last line may lack its end."""
    rests: dict[str, str] = {}
    for piece in pieces:
        stream = piece["stream"]
        *lines, rest = (rests.get(stream, "") + piece["text"]).split("\n")
        rests[stream] = rest
        for line in lines:
            typer.echo(f"[{stream}] {line}" if with_prefix else line)
    for stream, rest in rests.items():
        if rest:
            typer.echo(f"[{stream}] {rest}" if with_prefix else rest)


@app.command("cancel")
def cancel(job_id: JobId, reason: Annotated[str | None, typer.Option()] = None, *, as_json: AsJson = False) -> None:
    """Cancel: at once while it waits, else when its programs have stopped."""
    with open_client() as client:
        job = client.cancel_job(job_id, reason)
    if as_json:
        print_json(job)
    else:
        typer.echo(f"{job['id']}  {job['state']}: {job['state_reason']}")


@app.command("release")
def release(job_id: JobId, reason: Annotated[str | None, typer.Option()] = None, *, as_json: AsJson = False) -> None:
    """Out of HELD, back into the queue; a suspect program is released by an operator alone."""
    with open_client() as client:
        job = client.release_job(job_id, reason)
    if as_json:
        print_json(job)
    else:
        typer.echo(f"{job['id']}  {job['state']}: {job['state_reason']}")


@app.command("wait")
def wait(job_id: JobId, timeout: Annotated[str, typer.Option(help="Such as 10m.")] = "1d") -> int:
    """Until it has ended; exit code 0 succeeded, 20 failed, 21 cancelled."""
    deadline = time.monotonic() + (seconds_of(timeout) or 0)
    said = ""
    with open_client() as client:
        while True:
            job = client.job(job_id)
            if job["state"] in _END_CODES:
                typer.echo(f"{job['id']}  {job['state']}: {job['state_reason']}")
                return _END_CODES[job["state"]]
            if time.monotonic() > deadline:
                message = f"{job_id} is still {job['state']}: {job['state_reason']}"
                raise CommandError(message)
            if job["state"] == "HELD":
                said = _say_wait(job, said)
            time.sleep(0.5)
