"""``muster ckpt``: ``get`` fetches a job's checkpoint through the control plane. The other commands, where the runtime
is installed, work on checkpoints on a disk or in an object store.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.installed import Part, has, missing_words
from muster.cli.framework.job_names import resolved
from muster.cli.framework.output import Done, DryRun, changes
from muster.cli.framework.profile import find_profile, open_client
from muster.cli.framework.progress import progress
from muster.cli.framework.tables import printable
from muster.sizes import size_in_words

if TYPE_CHECKING:
    from muster import documents
    from muster.cli.job.checkpoint_stores import Signing
    from muster.client.checkpoint_downloads import CheckpointDownload, CheckpointFile
    from muster.client.rest import RestClient

app = typer.Typer(help="Checkpoints: fetch them, whether they are whole, and which stay.", no_args_is_help=True)
_TRUSTED: Final = ("VERIFIED", "GOOD")
_PASSED_BY: Final = ("WRITING", "EXPIRED")
_MOST_STEP: Final = 16
_LIST: Final = "`muster job checkpoints {job_id}` lists them."


def _resolved(context: typer.Context, text: str | None) -> str | None:
    """Return JOB:STEP with the job's id. Raises ``CommandError``, or a client's errors."""
    if text is None:
        return None
    job, colon, step = text.partition(":")
    if colon and not (step.isascii() and step.isdigit() and len(step) <= _MOST_STEP):
        raise CommandError(f"{text}: {step!r} is no step", "Name one such as my-job:400.", Exit.USAGE)
    return f"{resolved(context, job)}{colon}{step}"


Which = Annotated[
    str,
    typer.Argument(
        metavar="JOB[:STEP]",
        help="The job's name or id, and the checkpoint's step. Default: the newest that was verified.",
        callback=_resolved,
    ),
]


@changes(app, "get", example="muster ckpt get pretrain:400 --output checkpoints")
def get(
    which: Which,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder for it. Default: one named as the job.")
    ] = None,
    *,
    is_unverified: Annotated[
        bool,
        typer.Option(
            "--unverified", help="Also one that was not read back, did not verify, or may have wrong results."
        ),
    ] = False,
    dry_run: DryRun = False,
) -> Done:
    """Fetch a checkpoint of a job: verified, in parts, and from where it was if it was broken off.

    It gets its name, step-…/gen-…, in the folder once all of it is there. A training resumes from that folder. One in
    an object store of the job's is read with your own credentials, which are found as in a job (AWS_…).
    """
    from muster.client.checkpoint_downloads import CheckpointDownload

    job_id, _, step = which.partition(":")
    folder = output or Path(job_id)
    with open_client() as client, progress("checkpoint", has_lines=False) as bar:

        def on_progress(done: int, total: int) -> None:
            bar.report(f"{size_in_words(done)} of {size_in_words(total)}", done, total)

        chosen = _chosen(client, job_id, step, is_unverified=is_unverified)
        signing = _signing(client, job_id, chosen["generation"])
        fetching = CheckpointDownload(
            client, job_id, chosen, folder, is_unverified, find_profile().ca_file, on_progress, signing
        )
        manifest, files = _content(fetching)
        size = sum(one.num_bytes for one in files)
        words = f"step {chosen['step']}, {chosen['status']}, {size_in_words(size)} in {_counted(len(files))}"
        found = {"generation": chosen["generation"], "folder": str(folder), "num_bytes": size, "num_files": len(files)}
        if dry_run:
            return Done(found, f"{words}, for {fetching.target}")
        if fetching.target.exists():
            _require_same(fetching, manifest, files)
            return Done(found, f"{fetching.target} is there already, as it was saved")
        typer.echo(f"{words}, for {fetching.target}", err=True)
        if is_unverified and chosen["status"] not in _TRUSTED:
            reason = f": {chosen['reason']}" if chosen["reason"] else ""
            words = f"Warning: it is {chosen['status']}{reason}. No training continues from it by itself."
            typer.echo(printable(words), err=True)
        _require_room(fetching, files)
        _run(fetching, manifest, files)
    if fetching.damaged:
        bad = ", ".join(fetching.damaged[:5])
        typer.echo(f"Warning: not as they were saved: {bad}. `muster ckpt verify` refuses it.", err=True)
    return Done(found, f"{fetching.target} written")


def _chosen(client: "RestClient", job_id: str, step: str, *, is_unverified: bool) -> "documents.Checkpoint":
    """Return the checkpoint that is meant. Raises CommandError: there is none, or none that may be fetched."""
    every = [one for one in client.checkpoints(job_id) if not step or one["step"] == int(step)]
    there = [one for one in every if one["status"] not in _PASSED_BY]
    whole = [one for one in there if one["status"] in _TRUSTED]
    if whole:
        return whole[0]
    if there and is_unverified:
        return there[0]
    advice = _LIST.format(job_id=job_id)
    if there:
        named, reason = there[0], there[0]["reason"]
        words = f"the checkpoint of step {named['step']} is {named['status']}" + (f": {reason}" if reason else "")
        only = words if step else f"no checkpoint of {job_id} was verified; {words}"
        raise CommandError(only, "Fetch another one, or this one as it is by --unverified.", Exit.CONFLICT)
    if every:
        words = "is being written" if every[0]["status"] == "WRITING" else "was deleted: newer ones took its place"
        raise CommandError(f"the checkpoint of step {every[0]['step']} {words}", advice, Exit.NOT_FOUND)
    named_step = f" of step {step}" if step else ""
    raise CommandError(f"{job_id} has no checkpoint{named_step}", advice, Exit.NOT_FOUND)


def _signing(client: "RestClient", job_id: str, generation: str) -> "Signing | None":
    """Return what signs the files' addresses; None: the control plane does. Raises CommandError."""
    store = (client.job(job_id)["spec"].get("checkpoint") or {}).get("store")
    if store is None:
        return None
    from muster.cli.job.checkpoint_stores import own_signing

    return own_signing(f"{store.rstrip('/')}/{job_id}/{generation}", generation)


def _content(fetching: "CheckpointDownload") -> tuple[bytes, list["CheckpointFile"]]:
    """Return the manifest, and the files that it names. Raises CommandError."""
    from muster.store.faults import ObjectGoneError, StoreError

    try:
        manifest = fetching.manifest()
        files = [_file_in(one) for one in json.loads(manifest)["files"]]
    except ObjectGoneError as fault:
        raise CommandError(
            fault.detail, "Fetch another step, or copy it from a machine that has it.", Exit.NOT_FOUND
        ) from fault
    except StoreError as fault:
        raise CommandError(fault.detail, fault.suggestion, Exit.SERVER_FAULT) from fault
    except (ValueError, KeyError, TypeError) as fault:
        words = "the checkpoint's manifest cannot be read: a newer runtime saved it"
        raise CommandError(words, "Install the newest muster-client from /install.", Exit.FAILED) from fault
    if not all(_is_of_folder(one.name) for one in files):
        raise CommandError("the checkpoint's manifest has names of files that no runtime writes", code=Exit.FAILED)
    return manifest, files


def _file_in(one: Mapping[str, object]) -> "CheckpointFile":
    """Return a file of a manifest, which a job wrote. Raises ValueError, KeyError, TypeError."""
    from muster.client.checkpoint_downloads import CheckpointFile

    name, size, sha256 = one["name"], one["size"], one["sha256"]
    if not isinstance(name, str) or not isinstance(sha256, str) or not isinstance(size, int) or size < 0:
        raise ValueError("a file has a name, a size and a SHA-256")
    return CheckpointFile(name, size, sha256)


def _is_of_folder(name: str) -> bool:
    """Return whether a file of this name is in the folder itself, and its name can be shown on a terminal."""
    return name not in {"", ".", ".."} and Path(name).name == name and name.isprintable()


def _require_same(fetching: "CheckpointDownload", manifest: bytes, files: Sequence["CheckpointFile"]) -> None:
    """Raise CommandError unless the checkpoint is there as it was saved."""
    from muster.client.checkpoint_downloads import MANIFEST, digest_of_file

    with suppress(OSError):
        is_same = (fetching.target / MANIFEST).read_bytes() == manifest
        if is_same and all(digest_of_file(fetching.target / one.name) == one.sha256 for one in files):
            return
    raise CommandError(
        f"{fetching.target} is there and has other bytes", "Remove it, or name another folder by -o.", Exit.CONFLICT
    )


def _require_room(fetching: "CheckpointDownload", files: Sequence["CheckpointFile"]) -> None:
    """Raise CommandError unless the disk has room for what is still to be fetched."""
    needed = sum(one.num_bytes for one in files) - fetching.num_there(files)
    place = next(each for each in (fetching.folder.absolute(), *fetching.folder.absolute().parents) if each.exists())
    if needed > (free := shutil.disk_usage(place).free):
        words = f"{size_in_words(needed)} are to be fetched, and the disk of {place} has {size_in_words(free)} free"
        raise CommandError(words, "Name a folder on another disk by -o.", Exit.FAILED)


def _run(fetching: "CheckpointDownload", manifest: bytes, files: Sequence["CheckpointFile"]) -> None:
    from muster.client.checkpoint_downloads import DamagedFileError
    from muster.client.output_files import PlaceError
    from muster.store.faults import StoreError

    try:
        fetching.run(manifest, files)
    except PlaceError as fault:
        raise CommandError(fault.detail, "Name another folder by -o.", Exit.FAILED) from fault
    except DamagedFileError as fault:
        raise CommandError(fault.detail, fault.suggestion, Exit.FAILED) from fault
    except StoreError as fault:
        words = f"{fault.detail}. What was fetched stays: the same command continues"
        raise CommandError(words, fault.suggestion, Exit.SERVER_FAULT) from fault


def _counted(number: int) -> str:
    return "1 file" if number == 1 else f"{number:,} files"


def _refused(name: str) -> Callable[[], None]:
    """Return the command of this name where the runtime is not installed."""

    def command() -> None:
        raise CommandError(missing_words(f"`muster ckpt {name}`", Part.TRAIN), code=Exit.USAGE)

    return command


if has(Part.TRAIN):
    from muster.cli.job import checkpoint_folders

    app.registered_commands += checkpoint_folders.app.registered_commands
else:
    for each in ("ls", "verify", "show", "scrub", "pin", "unpin"):
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(each, hidden=True, context_settings=settings)(_refused(each))
