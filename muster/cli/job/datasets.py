"""``muster data`` works on datasets on a disk. It needs no server and no torch, and it unpickles nothing."""

from pathlib import Path
from typing import Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import Done, Listing, changes, reads
from muster.cli.framework.tables import Column
from muster.sizes import size_in_words
from muster.train.data import dataset_manifest as manifests
from muster.train.data.dataset_manifest import DATASET, DatasetError

app = typer.Typer(help="Datasets on a disk: what is in them, and whether they are whole.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="The folder that holds the dataset.", show_default=False)]
DATASET_DIFFERENCES: Final = (
    Column("FILE", lambda item: item["path"], is_text=True),
    Column("STATE", lambda item: item["what"]),
    Column("WHY", lambda item: item["why"], is_text=True),
)


@changes(app, "manifest", example="muster data manifest /mnt/data/corpus --lines '*.jsonl'")
def write_manifest(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help=f"Write it there instead of into DIR/{DATASET}.")] = None,
    lines: Annotated[
        str | None, typer.Option(help="In files like this, such as *.jsonl, each line is a sample.")
    ] = None,
) -> Done:
    """Read every file of a folder and write its manifest: paths, sizes, SHA-256, and the dataset's own."""
    try:
        manifest = manifests.describe(folder, lines=lines)
    except DatasetError as fault:
        raise CommandError(str(fault), code=Exit.INVALID) from None
    try:
        target = manifests.write(folder, manifest, out)
    except OSError as fault:
        words = f"{fault.filename or out or folder} cannot be written: {fault.strerror}"
        raise CommandError(words, "Name another place with --out.", Exit.DENIED) from None
    samples = "" if manifest.num_samples is None else f", {manifest.num_samples:,} samples"
    said = f"{target}  {manifest.sha256}\n  {len(manifest.files):,} files, {size_in_words(manifest.num_bytes)}{samples}"
    found = {
        "path": str(target),
        "sha256": manifest.sha256,
        "num_files": len(manifest.files),
        "num_bytes": manifest.num_bytes,
        "num_samples": manifest.num_samples,
    }
    return Done(found, said)


@reads(app, "verify", example="muster data verify /mnt/data/corpus")
def verify(
    folder: Folder,
    manifest: Annotated[Path | None, typer.Option(help=f"Instead of DIR/{DATASET}.")] = None,
) -> Listing:
    """Read every file back and name each that is damaged, missing or not in the manifest. Exit code 0 if none is."""
    try:
        expected = manifests.read(folder, manifest)
        found = manifests.differences(folder, expected)
    except DatasetError as fault:
        raise CommandError(str(fault), code=Exit.INVALID) from None
    rows = [{"path": each.path, "what": each.what, "why": each.why} for each in found]
    whole = f"Whole: {len(expected.files):,} files, {size_in_words(expected.num_bytes)}, {expected.sha256}"
    notes = [f"{len(found):,} differ, of {len(expected.files):,} files that the manifest names."]
    return Listing(rows, DATASET_DIFFERENCES, whole, notes, Exit.FAILED if found else Exit.OK)
