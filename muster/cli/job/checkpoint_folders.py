"""``muster ckpt`` works on checkpoints on a disk or in an object store.

It needs no server, no torch and no key. ``verify`` unpacks what it can, as a resume does: tensors and plain values.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import Done, Listing, Page, Table, age, changes, moment_of, reads
from muster.cli.framework.progress import progress
from muster.cli.framework.sizes import bytes_of
from muster.cli.framework.tables import Column, Document
from muster.cli.job.checkpoint_texts import document, half_document, lineage_words, or_dash
from muster.cli.job.checkpoint_trial import UntriedError, try_restore
from muster.sizes import size_in_words
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import Manifest, UnusableError
from muster.train.checkpoint.retention import PINNED, PINNED_BY_CONTROL_PLANE, PINS
from muster.train.checkpoint.scrub import Throttle
from muster.train.checkpoint.storage.bucket import MissingExtraError
from muster.train.checkpoint.storage.places import S3Place, is_s3
from muster.train.checkpoint.storage.stores import Store, store_of

app = typer.Typer()
"""Commands of the group `muster ckpt` (``checkpoints.app``), which has them where the runtime is installed."""
COMPLETE: Final = "complete"
VERIFIED: Final = "verified"
DAMAGED: Final = "damaged"
UNREADABLE: Final = "unreadable"
UNUSABLE: Final = "unusable"
_USABLE: Final = (COMPLETE, VERIFIED)
_LISTED_WORDS: Final = "Only the newest was read back; of older ones the sizes are right where they are complete."
_FAST_WORDS: Final = "By sizes alone (--fast): no file was read, and a byte that changed would not show."
Location = Annotated[
    str, typer.Argument(help="A job's folder of checkpoints, or s3://BUCKET/PREFIX of one.", show_default=False)
]
GENERATIONS: Final = (
    Column("STEP", lambda item: item["step"]),
    Column("FENCE", lambda item: item["fence"]),
    Column("STATE", lambda item: item["state"]),
    Column("RANKS", lambda item: or_dash(item["num_ranks"])),
    Column("SIZE", lambda item: size_in_words(item["num_bytes"])),
    Column("LOSS", lambda item: "–" if item["loss"] is None else f"{item['loss']:.4g}"),
    Column("AGE", lambda item: "–" if item["committed_at"] is None else age(item["committed_at"])),
    Column("PIN", lambda item: "pinned" if item["is_pinned"] else ""),
    Column("WHY", lambda item: item["why"], is_text=True),
)
FILES: Final = (
    Column("RANK", lambda item: item["rank"]),
    Column("FILE", lambda item: item["name"]),
    Column("SIZE", lambda item: size_in_words(item["size"])),
    Column("SHA-256", lambda item: item["sha256"][:16], wide=lambda item: item["sha256"]),
)


@reads(app, "ls", example="muster ckpt ls /mnt/checkpoints/pretrain")
def list_generations(
    location: Location,
    *,
    is_fast: Annotated[bool, typer.Option("--fast", help="By the sizes of its files alone, the newest too.")] = False,
) -> Listing:
    """List every generation, the newest first: that one is read back and compared, older ones by the sizes of their
    files.

    Exit code 0 only if the newest is as it was saved; with --fast, if its files have their sizes.
    """
    there = _opened(location)
    num_read = 0 if is_fast else 1
    found = [_read_back(there, one) for one in there.generations[:num_read]]
    found += [_checked(there, one, COMPLETE, there.store.measured) for one in there.generations[num_read:]]
    half = [half_document(step, fence) for step, fence in there.half_written]
    rows = sorted(found + half, key=lambda item: (item["step"], item["fence"]), reverse=True)
    notes = [_FAST_WORDS if is_fast else _LISTED_WORDS, _fence_words(there.store)]
    return Listing(rows, GENERATIONS, "", notes, _exit_of(found[:1]))


@reads(app, "verify", example="muster ckpt verify s3://checkpoints/pretrain/job_…")
def verify(
    location: Location,
    *,
    is_all: Annotated[bool, typer.Option("--all", help="Every generation, not just back to one that is good.")] = False,
) -> Listing:
    """Try what a resume tries: read back every byte, compare it and unpack it; the newest, then older ones until one is
    as it was saved.

    Exit code 0 only if the newest is, and an attempt can begin there.
    """
    there = _opened(location)
    found: list[Document] = []
    notes: list[str] = []
    for generation in there.generations:
        found.append(_tried(there, generation, notes))
        if not is_all and found[-1]["state"] == VERIFIED:
            break
    fault = _fence_fault(there.store)
    said = [_resume_words(found), *notes, *([] if fault is None else [f"{fault} No attempt can begin."])]
    return Listing(found, GENERATIONS, "", said, _exit_of(found[:1]) if fault is None else Exit.FAILED)


@reads(app, "show", example="muster ckpt show /mnt/checkpoints/pretrain --step 400")
def show(
    location: Location,
    step: Annotated[int | None, typer.Option(min=0, help="Of this step; else the newest.")] = None,
) -> Page:
    """Show one generation: the state of training, the attempt that saved it, and each rank's file. Exit code 0 if
    whole.
    """
    there = _opened(location)
    chosen = _chosen(there, step)
    found = _read_back(there, chosen)
    about = _manifest(there.store, chosen)
    if about is None:
        return Page(found, [f"{chosen.name}  {found['state']}", f"  {found['why']}"], Exit.FAILED)
    files = [{"rank": one.rank, "name": one.name, "size": one.size, "sha256": one.sha256} for one in about.files]
    saved_at = moment_of(found["committed_at"])
    said: list[str | Table] = [
        f"{chosen.name}  {found['state']}",
        *([f"  {found['why']}"] if found["why"] else []),
        f"  after step {about.step}, {about.position} samples; loss {or_dash(about.loss)}",
        f"  saved by {about.attempt_id or 'a run of its own'} at {saved_at}, torch {about.torch_version}",
        f"  {about.world_size} ranks, {size_in_words(about.num_bytes)}; a save takes {about.longest_save_s:.2g} s",
        *([f"  encrypted under key {about.key_id}"] if about.key_id else []),
        *lineage_words(about.lineage),
        Table(FILES, files),
    ]
    return Page({**found, "lineage": about.lineage, "files": files}, said, _exit_of([found]))


@reads(app, "scrub", example="muster ckpt scrub /mnt/checkpoints/pretrain --rate 20MB")
def scrub(
    location: Location,
    rate: Annotated[str, typer.Option(help="At most so much a second is read, such as 200MB.")] = "50MB",
) -> Listing:
    """Read every generation again and compare it, slowly, so that other work can use the disk.

    Exit code 0 only if all of them are as they were saved.
    """
    there = _opened(location)
    throttle = Throttle(_rate_of(rate), threading.Event(), lambda: False)
    found = [_read_back(there, one, throttle.spent) for one in there.generations]
    num_whole = sum(item["state"] == VERIFIED for item in found)
    return Listing(found, GENERATIONS, "", [f"{num_whole} of {len(found)} are as they were saved."], _exit_of(found))


def _rate_of(text: str) -> float:
    rate = bytes_of(text, "--rate") or 0
    if rate <= 0:
        raise CommandError(
            f"--rate {text}: nothing could be read at that rate", "Name bytes a second, such as 50MB.", Exit.USAGE
        )
    return float(rate)


Step = Annotated[int, typer.Option(min=0, help="Of this step; of several the newest.")]


@changes(app, "pin", example="muster ckpt pin /mnt/checkpoints/pretrain --step 400")
def pin(location: Location, step: Step) -> Done:
    """Mark a generation in its store: retention never removes it, with a server or without."""
    there = _opened(location)
    chosen = _chosen(there, step)
    if _manifest(there.store, chosen) is None:
        raise CommandError(f"{chosen.name} has no manifest that can be read", "See `muster ckpt verify`.", Exit.FAILED)
    _carry(there.store.pin, chosen, PINNED)
    return Done({"generation": chosen.name, "is_pinned": True}, f"{chosen.name}  pinned")


@changes(app, "unpin", example="muster ckpt unpin /mnt/checkpoints/pretrain --step 400")
def unpin(location: Location, step: Step) -> Done:
    """Remove the mark: retention may remove it after newer ones are whole. The control plane's own mark stays."""
    there = _opened(location)
    chosen = _chosen(there, step)
    _carry(there.store.unpin, chosen, PINNED)
    is_held = chosen.name in there.store.pinned_ones(PINNED_BY_CONTROL_PLANE)
    said = "pinned by the control plane still: `muster job unpin`" if is_held else "not pinned"
    return Done({"generation": chosen.name, "is_pinned": is_held}, f"{chosen.name}  {said}")


def _carry(change: Callable[[Generation, str], None], generation: Generation, mark: str) -> None:
    try:
        change(generation, mark)
    except OSError as fault:
        raise CommandError(f"{generation.name} cannot be marked: {fault}", code=Exit.DENIED) from fault


def _chosen(there: "_There", step: int | None) -> Generation:
    chosen = next((one for one in there.generations if step in {None, one.step}), None)
    if chosen is None:
        steps = ", ".join(str(one.step) for one in there.generations[:5])
        raise CommandError(f"there is no generation of step {step}", f"The newest are of {steps}.", Exit.NOT_FOUND)
    return chosen


@dataclass(frozen=True)
class _There:
    store: Store
    generations: list[Generation]
    half_written: list[tuple[int, int]]
    good: frozenset[str]
    pinned: frozenset[str]


def _opened(location: str) -> _There:
    """Return the location's content. Raises ``CommandError`` if it holds no checkpoint."""
    store = _store(location)
    try:
        pinned = frozenset[str]().union(*(store.pinned_ones(mark) for mark in PINS))
        there = _There(store, store.list_generations(), store.half_written(), store.good_ones(), pinned)
    except OSError as fault:
        why = fault.strerror or str(fault)
        raise CommandError(f"{store} cannot be read: {why}", code=Exit.DENIED) from fault
    if not there.generations:
        advice = "A generation is a folder in it, such as step-00000040/gen-3."
        raise CommandError(f"{store} holds no checkpoint of muster.train", advice, Exit.NOT_FOUND)
    return there


def _store(location: str) -> Store:
    if not is_s3(location):
        if not Path(location).is_dir():
            advice = "Name the folder in which the job keeps its checkpoints."
            raise CommandError(f"{location} is no folder", advice, Exit.USAGE)
        return store_of(Path(location))
    try:
        return store_of(S3Place.of(location))
    except ValueError as fault:
        raise CommandError(str(fault), code=Exit.USAGE) from fault
    except MissingExtraError as fault:
        advice = "Install it in muster's environment: pip install 'boto3>=1.40,<2'."
        raise CommandError(f"{location} needs boto3, which is not installed here", advice, Exit.USAGE) from fault
    except OSError as fault:
        raise CommandError(f"{location} cannot be read: {fault}", code=Exit.DENIED) from fault


def _read_back(there: _There, generation: Generation, pace: Callable[[int], None] | None = None) -> Document:
    """Read every byte of a generation, with progress on a terminal. ``pace`` is called for each piece, and may wait."""
    about = _manifest(there.store, generation)
    num_bytes, num_read = 0 if about is None else about.num_bytes, 0
    with progress(f"reading {generation.name}", has_lines=False) as shown:

        def read(piece_bytes: int) -> None:
            nonlocal num_read
            num_read += piece_bytes
            shown.report(f"{size_in_words(num_read)} of {size_in_words(num_bytes)}", num_read, num_bytes)
            if pace is not None:
                pace(piece_bytes)

        return _checked(there, generation, VERIFIED, partial(there.store.verify, pace=read))


def _tried(there: _There, generation: Generation, notes: list[str]) -> Document:
    """Read a generation back and unpack it. What this machine cannot try is added to ``notes``, each text once."""
    found = _read_back(there, generation)
    about = _manifest(there.store, generation)
    if found["state"] != VERIFIED or about is None:
        return found
    try:
        try_restore(there.store, about)
    except UntriedError as fault:
        notes.extend(str(fault) for _ in range(str(fault) not in notes))
    except (UnusableError, OSError) as fault:
        return {**found, "state": UNUSABLE if isinstance(fault, UnusableError) else UNREADABLE, "why": str(fault)}
    return found


def _checked(there: _There, generation: Generation, state: str, check: Callable[[Generation], Manifest]) -> Document:
    said = partial(document, is_good=generation.name in there.good, is_pinned=generation.name in there.pinned)
    try:
        about = check(generation)
    except (UnusableError, OSError) as fault:
        unusable = DAMAGED if isinstance(fault, UnusableError) and fault.is_damage else UNREADABLE
        return said(generation, unusable, _manifest(there.store, generation), str(fault))
    return said(generation, state, about)


def _manifest(store: Store, generation: Generation) -> Manifest | None:
    try:
        return store.read_manifest(generation)
    except (UnusableError, OSError):
        return None


def _fence_fault(store: Store) -> str | None:
    try:
        store.highest_fence()
    except OSError as fault:
        return f"The fence cannot be read: {fault}."
    return None


def _fence_words(store: Store) -> str:
    if (fault := _fence_fault(store)) is not None:
        return fault
    fence = store.highest_fence()
    if fence == 0:
        return "No attempt has begun under a fence here."
    return f"Fence {fence} has begun: an attempt with a lower one commits nothing here any more."


def _resume_words(found: Sequence[Document]) -> str:
    last = found[-1]
    good = next((item for item in found if item["state"] == VERIFIED), None)
    num_unreadable = sum(item["state"] == UNREADABLE for item in found)
    if good is None and num_unreadable:
        return f"None of {len(found)} was verified; {num_unreadable} cannot be read here and now, and may be whole."
    if good is None and (unfit := next((item for item in found if item["state"] == UNUSABLE), None)) is not None:
        return f"None of {len(found)} can be used, and a resume would end: {unfit['why']}."
    if good is None:
        return f"None of {len(found)} is as it was saved; training would begin at step 0."
    if found[0]["state"] == UNREADABLE:
        return f"The newest cannot be read here and now, and may be whole; that of step {good['step']} was verified."
    if good is not found[0]:
        return f"The newest cannot be used: a resume continues after step {good['step']}."
    return f"A resume continues after step {good['step']}." if last is good else f"{len(found)} were read back."


def _exit_of(newest: Sequence[Document]) -> int:
    return Exit.OK if all(item["state"] in _USABLE for item in newest) else Exit.FAILED
