"""``muster job files`` and ``muster job get``: what a job left, and its files on this disk."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.names import JobId
from muster.cli.framework.output import Done, DryRun, Listing
from muster.cli.framework.profile import find_profile, open_client
from muster.cli.framework.progress import progress
from muster.cli.framework.tables import Column
from muster.domain.stored_content import HostOutputsState
from muster.sizes import size_in_words

if TYPE_CHECKING:
    from muster import documents
    from muster.client.output_downloads import OutputDownload
    from muster.client.rest import RestClient

Attempt = Annotated[
    int | None, typer.Option(min=1, help=parameter_help("attempt", "Default: the newest with outputs."))
]
Step = Annotated[str | None, typer.Option(help=parameter_help("step", "Default: the end, else the newest step."))]
Node = Annotated[int | None, typer.Option(min=0, help=parameter_help("node_rank", "Default: all."))]
_MOST_NAMED: Final = 5
_AT_CHECKPOINTS: Final = (
    "Files that `outputs` of a job names are stored at each checkpoint too, so they outlive a lost host: `--step STEP`."
)
COLUMNS = (
    Column("PATH", lambda file: file["path"], is_text=True),
    Column("SIZE", lambda file: size_in_words(file["num_bytes"])),
    Column("NODE", lambda file: file["node_rank"]),
    Column("ATTEMPT", lambda file: file["attempt"]),
    Column("STEP", lambda file: "final" if file["step"] is None else file["step"]),
    Column("BYTES", lambda file: file["num_bytes"], only_wide=True),
)


def files(
    job_id: JobId,
    path: Annotated[str, typer.Argument(help=parameter_help("prefix"), show_default=False)] = "",
    attempt: Attempt = None,
    step: Step = None,
    node: Node = None,
    *,
    from_all: Annotated[
        bool, typer.Option("--all", help="Files of every attempt and step that the other options leave.")
    ] = False,
) -> Listing:
    """List the files that hosts collected of a job: at the end of its newest attempt, unless others are named.

    Hosts whose outputs are not there, yet or any more, are named below.
    """
    with open_client() as client:
        chosen: Sequence[documents.JobOutputs] = ()
        if from_all:
            named = client.files(job_id, prefix=path or None, attempt=attempt, step=step, node_rank=node, limit=200)
            found = list(named)
        else:
            chosen = chosen_outputs(client, job_id, attempt, step, node)
            found = [file for one in chosen for file in _files_in(client, job_id, one, path)]
        notes = missing_words(missing_outputs(client, job_id, attempt, step, node, chosen))
    return Listing(found, COLUMNS, "\n".join(["No files.", *notes]), notes)


def get(
    job_id: JobId,
    path: Annotated[
        str | None, typer.Argument(help=parameter_help("path", "Or a folder. Default: all."), show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder for them. Default: one named as the job.")
    ] = None,
    attempt: Attempt = None,
    step: Step = None,
    node: Node = None,
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that have other bytes.")] = False,
    is_partial: Annotated[
        bool, typer.Option("--partial", help="End with 0 although outputs of hosts are missing; they are named.")
    ] = False,
    dry_run: DryRun = False,
) -> Done:
    """Fetch a job's files: verified, in parts, and from where it was if it was broken off.

    What is there with the same bytes is not fetched again. Nothing is written outside of the folder. If outputs of a
    host are missing, the others are fetched, and the exit code is not 0.
    """
    folder = output or Path(job_id)
    path = None if path is None else path.strip("/") or None
    with open_client() as client:
        chosen = chosen_outputs(client, job_id, attempt, step, node)
        missing = missing_outputs(client, job_id, attempt, step, node, chosen)
        chosen = [one for one in chosen if one["num_files"]]
        if path is not None:
            chosen = [one for one in chosen if _has(client, job_id, one, path)]
        if not chosen:
            advice = " ".join([f"`muster job files {job_id} --all` lists all.", *missing_words(missing)])
            raise CommandError(f"the job's outputs have no {path or 'file'}", advice)
        if dry_run:
            found = [
                file for one in chosen for file in _files_in(client, job_id, one, path or "") if _is_in(file, path)
            ]
            size = size_in_words(sum(file["num_bytes"] for file in found))
            said = f"{_counted(len(found))}, {size}, for {folder}"
            return Done({"folder": str(folder), "num_files": len(found)}, said, "\n".join(missing_words(missing)))
        number, ranks = 0, {one["node_rank"] for one in (*chosen, *missing)}
        for one in chosen:
            within = folder / f"node-{one['node_rank']}" if len(ranks) > 1 else folder
            number += _fetch(client, job_id, one, within, path, replaces=overwrite)
    said = f"{_counted(number)} written to {folder}" if number else f"{folder} has all files already"
    return Done(
        {"folder": str(folder), "num_written": number, "missing": missing},
        said,
        "\n".join(missing_words(missing)),
        Exit.FAILED if missing and not is_partial else Exit.OK,
    )


def missing_outputs(
    client: "RestClient",
    job_id: str,
    attempt: int | None,
    step: str | None,
    node: int | None,
    chosen: Sequence["documents.JobOutputs"] = (),
) -> list["documents.HostOutputs"]:
    """Return the hosts whose outputs of an end are missing: of the attempt, else of the newest and that of ``chosen``.

    Outputs of a step that is named are of one host, and miss nothing.
    """
    if step not in {None, "final"}:
        return []
    numbers = {attempt} if attempt is not None else {None, *(one["attempt"] for one in chosen)}
    every = [one for number in numbers for one in client.output_hosts(job_id, attempt=number, limit=200)]
    found = {(one["attempt"], one["node_rank"]): one for one in every if one["is_missing"]}
    return [one for _, one in sorted(found.items()) if node in {None, one["node_rank"]}]


def missing_words(missing: Sequence["documents.HostOutputs"]) -> list[str]:
    """Return a line for each of the first hosts, one for the others, and what else may be there of a lost one."""
    lines = [
        f"Missing: the outputs of host {one['node_rank']} ({one['node_name']}) at the end of attempt {one['attempt']}:"
        f" {one['why']}."
        for one in missing[:_MOST_NAMED]
    ]
    if len(missing) > _MOST_NAMED:
        lines.append(f"So it is for {len(missing) - _MOST_NAMED:,} more hosts.")
    return [*lines, _AT_CHECKPOINTS] if any(one["state"] == HostOutputsState.LOST for one in missing) else lines


def chosen_outputs(
    client: "RestClient", job_id: str, attempt: int | None, step: str | None, node: int | None
) -> list["documents.JobOutputs"]:
    """Return the complete outputs that are meant, one for each host: of one attempt, at its end or at one step.

    Raises CommandError: there are none.
    """
    found = list(client.outputs(job_id, attempt=attempt, step=step, node_rank=node, limit=200))
    whole = [one for one in found if one["completed_at"] is not None]
    if not whole:
        state = client.job(job_id)["state"] if not found else "being uploaded"
        words = "its hosts still upload them" if found else f"nothing was collected (the job is {state})"
        advice = "Files in $MUSTER_OUTPUT_DIR and files that `outputs` of the job names are collected at its end."
        advice = " ".join([*missing_words(missing_outputs(client, job_id, attempt, step, node)), advice])
        raise CommandError(f"{job_id} has no outputs to read: {words}", advice, Exit.NOT_FOUND)
    newest = max(one["attempt"] for one in whole)
    whole = [one for one in whole if one["attempt"] == newest]
    last = None if any(one["step"] is None for one in whole) else max(one["step"] or 0 for one in whole)
    return sorted((one for one in whole if one["step"] == last), key=lambda one: one["node_rank"])


def _files_in(
    client: "RestClient", job_id: str, outputs: "documents.JobOutputs", path: str
) -> Iterable["documents.JobFile"]:
    step = "final" if outputs["step"] is None else str(outputs["step"])
    return client.files(
        job_id,
        prefix=path or None,
        attempt=outputs["attempt"],
        step=step,
        node_rank=outputs["node_rank"],
        limit=200,
    )


def _has(client: "RestClient", job_id: str, outputs: "documents.JobOutputs", path: str) -> bool:
    return any(_is_in(file, path) for file in _files_in(client, job_id, outputs, path))


def _counted(number: int) -> str:
    return "1 file" if number == 1 else f"{number:,} files"


def _is_in(file: "documents.JobFile", path: str | None) -> bool:
    return path is None or file["path"] == path or file["path"].startswith(f"{path}/")


def _fetch(
    client: "RestClient",
    job_id: str,
    outputs: "documents.JobOutputs",
    folder: Path,
    path: str | None,
    *,
    replaces: bool,
) -> int:
    """Fetch one host's outputs. Return how many files were written. Raises CommandError."""
    from muster.client.output_downloads import OutputDownload

    with progress("outputs", has_lines=False) as bar:

        def on_progress(done: int, total: int) -> None:
            bar.report(f"{size_in_words(done)} of {size_in_words(total)}", done, total)

        fetching = OutputDownload(client, job_id, outputs, folder, path, replaces, find_profile().ca_file, on_progress)
        return _run(fetching)


def _run(fetching: "OutputDownload") -> int:
    from muster.client.output_downloads import OtherBytesError
    from muster.client.output_files import PlaceError
    from muster.content.faults import ManifestError
    from muster.store.faults import StoreError

    try:
        return fetching.run()
    except OtherBytesError as fault:
        words = f"other bytes are in {_counted(fault.number)} of {fetching.folder}, such as {', '.join(fault.paths)}"
        raise CommandError(
            words, "Name another folder by -o, or replace them by --overwrite.", Exit.CONFLICT
        ) from fault
    except PlaceError as fault:
        raise CommandError(fault.detail, "Name another folder by -o.", Exit.FAILED) from fault
    except ManifestError as fault:
        raise CommandError(
            f"the list of files cannot be read: {fault}", "Report it to the operator.", Exit.SERVER_FAULT
        ) from fault
    except StoreError as fault:
        words = f"{fault.detail}. What was fetched stays: the same command continues"
        raise CommandError(words, fault.suggestion, Exit.SERVER_FAULT) from fault
