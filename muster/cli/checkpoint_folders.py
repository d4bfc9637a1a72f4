"""``muster ckpt``: checkpoints as they lie on a disk or in an object store. It asks no server of ours, needs no torch,
no key, and unpickles nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from muster.cli.exits import CommandError, Exit
from muster.cli.output import Listing, Page, Table, age, reads
from muster.cli.sizes import size_in_words
from muster.cli.tables import Column, Document
from muster.train.bucket import MissingExtraError
from muster.train.generations import Generation
from muster.train.manifest import Manifest, UnusableError
from muster.train.places import S3Place, is_s3
from muster.train.stores import Store, store_of

app = typer.Typer(help="Checkpoints: which there are, and whether they are whole.", no_args_is_help=True)
COMPLETE: Final = "complete"
VERIFIED: Final = "verified"
DAMAGED: Final = "damaged"
UNREADABLE: Final = "unreadable"
HALF: Final = "half written"
_USABLE: Final = (COMPLETE, VERIFIED)
Location = Annotated[
    str, typer.Argument(help="A job's folder of checkpoints, or s3://BUCKET/PREFIX of one.", show_default=False)
]
GENERATIONS: Final = (
    Column("STEP", lambda item: item["step"]),
    Column("FENCE", lambda item: item["fence"]),
    Column("STATE", lambda item: item["state"]),
    Column("RANKS", lambda item: _or_dash(item["num_ranks"])),
    Column("SIZE", lambda item: size_in_words(item["num_bytes"])),
    Column("LOSS", lambda item: "–" if item["loss"] is None else f"{item['loss']:.4g}"),
    Column("AGE", lambda item: "–" if item["committed_at"] is None else age(item["committed_at"])),
    Column("WHY", lambda item: item["why"], is_text=True),
)
FILES: Final = (
    Column("RANK", lambda item: item["rank"]),
    Column("FILE", lambda item: item["name"]),
    Column("SIZE", lambda item: size_in_words(item["size"])),
    Column("SHA-256", lambda item: item["sha256"][:16], wide=lambda item: item["sha256"]),
)


@reads(app, "ls", example="muster ckpt ls /mnt/checkpoints/pretrain")
def list_generations(location: Location) -> Listing:
    """Every generation by its manifest and the sizes of its files, the newest first. Nothing is read back: see verify.

    Ends with 0 only if the newest is complete.
    """
    there = _opened(location)
    found = [_looked_at(there, one, COMPLETE, there.store.measured) for one in there.generations]
    half = [_half(step, fence) for step, fence in there.half_written]
    rows = sorted(found + half, key=lambda item: (item["step"], item["fence"]), reverse=True)
    return Listing(rows, GENERATIONS, "", [_fence_words(there.store)], _exit_of(found[:1]))


@reads(app, "verify", example="muster ckpt verify s3://checkpoints/pretrain/job_…")
def verify(
    location: Location,
    *,
    is_all: Annotated[bool, typer.Option("--all", help="Every generation, not just back to one that is good.")] = False,
) -> Listing:
    """Read back every byte and compare it: the newest, then older ones until one is as it was saved.

    Ends with 0 only if the newest is.
    """
    there = _opened(location)
    found: list[Document] = []
    for generation in there.generations:
        found.append(_looked_at(there, generation, VERIFIED, there.store.verify))
        if not is_all and found[-1]["state"] == VERIFIED:
            break
    return Listing(found, GENERATIONS, "", [_resume_words(found)], _exit_of(found[:1]))


@reads(app, "show", example="muster ckpt show /mnt/checkpoints/pretrain --step 400")
def show(
    location: Location,
    step: Annotated[int | None, typer.Option(min=0, help="Of this step; else the newest.")] = None,
) -> Page:
    """One generation: where training stood, by whom it was saved, and each rank's file. Ends with 0 if it is whole."""
    there = _opened(location)
    chosen = next((one for one in there.generations if step in {None, one.step}), None)
    if chosen is None:
        steps = ", ".join(str(one.step) for one in there.generations[:5])
        raise CommandError(f"there is no generation of step {step}", f"The newest are of {steps}.", Exit.NOT_FOUND)
    found = _looked_at(there, chosen, VERIFIED, there.store.verify)
    about = _manifest(there.store, chosen)
    if about is None:
        return Page(found, [f"{chosen.name}  {found['state']}", f"  {found['why']}"], Exit.FAILED)
    files = [{"rank": one.rank, "name": one.name, "size": one.size, "sha256": one.sha256} for one in about.files]
    said: list[str | Table] = [
        f"{chosen.name}  {found['state']}",
        *([f"  {found['why']}"] if found["why"] else []),
        f"  after step {about.step}, {about.position} samples; loss {_or_dash(about.loss)}",
        f"  saved by {about.attempt_id or 'a run of its own'} at {found['committed_at']}, torch {about.torch_version}",
        f"  {about.world_size} ranks, {size_in_words(about.num_bytes)}; a save takes {about.longest_save_s:.2g} s",
        *([f"  encrypted under key {about.key_id}"] if about.key_id else []),
        *_lineage_words(about.lineage),
        Table(FILES, files),
    ]
    return Page({**found, "lineage": about.lineage, "files": files}, said, _exit_of([found]))


@dataclass(frozen=True)
class _There:
    store: Store
    generations: list[Generation]
    half_written: list[tuple[int, int]]
    good: frozenset[str]


def _opened(location: str) -> _There:
    """Raises ``CommandError`` where it holds nothing."""
    store = _store(location)
    try:
        there = _There(store, store.list_generations(), store.half_written(), store.good_ones())
    except OSError as fault:
        why = fault.strerror or str(fault)
        raise CommandError(f"{store} cannot be read: {why}", code=Exit.DENIED) from fault
    if not there.generations:
        advice = "A generation lies in a folder such as step-00000040/gen-3 of it."
        raise CommandError(f"{store} holds no checkpoint of ours", advice, Exit.NOT_FOUND)
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
        advice = "Install it beside muster: pip install 'boto3>=1.40,<2'."
        raise CommandError(f"{location} needs boto3, which is not installed here", advice, Exit.USAGE) from fault
    except OSError as fault:
        raise CommandError(f"{location} cannot be asked: {fault}", code=Exit.DENIED) from fault


def _looked_at(there: _There, generation: Generation, state: str, look: Callable[[Generation], Manifest]) -> Document:
    is_good = generation.name in there.good
    try:
        about = look(generation)
    except (UnusableError, OSError) as fault:
        unusable = DAMAGED if isinstance(fault, UnusableError) and fault.is_damage else UNREADABLE
        return _document(generation, unusable, _manifest(there.store, generation), str(fault), is_good=is_good)
    return _document(generation, state, about, is_good=is_good)


def _manifest(store: Store, generation: Generation) -> Manifest | None:
    try:
        return store.read_manifest(generation)
    except (UnusableError, OSError):
        return None


def _document(generation: Generation, state: str, about: Manifest | None, why: str = "", *, is_good: bool) -> Document:
    committed_at = None
    if about is not None:
        committed_at = datetime.fromtimestamp(about.committed_at_unix_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "step": generation.step,
        "fence": generation.fence,
        "generation": generation.name,
        "state": state,
        "why": why,
        "is_good": is_good,
        "num_ranks": None if about is None else about.world_size,
        "num_bytes": None if about is None else about.num_bytes,
        "loss": None if about is None else about.loss,
        "committed_at": committed_at,
        "key_id": None if about is None else about.key_id,
    }


def _half(step: int, fence: int) -> Document:
    why = "it was never committed; a resume passes it over"
    empty = dict.fromkeys(("num_ranks", "num_bytes", "loss", "committed_at", "key_id"))
    return {"step": step, "fence": fence, "generation": None, "state": HALF, "why": why, "is_good": False, **empty}


def _fence_words(store: Store) -> str:
    try:
        fence = store.highest_fence()
    except OSError as fault:
        return f"The fence cannot be told: {fault}"
    if fence == 0:
        return "No attempt has begun under a fence here."
    return f"Fence {fence} has begun: whoever has a lower one commits nothing here any more."


def _resume_words(found: Sequence[Document]) -> str:
    last = found[-1]
    good = next((item for item in found if item["state"] == VERIFIED), None)
    num_unreadable = sum(item["state"] == UNREADABLE for item in found)
    if good is None and num_unreadable:
        return f"None of {len(found)} was verified; {num_unreadable} cannot be read here and now, and may be whole."
    if good is None:
        return f"None of {len(found)} is as it was saved; training would begin anew."
    if found[0]["state"] == UNREADABLE:
        return f"The newest cannot be read here and now, and may be whole; that of step {good['step']} was verified."
    if good is not found[0]:
        return f"The newest is not as it was saved: a resume goes on after step {good['step']}."
    return f"A resume goes on after step {good['step']}." if last is good else f"{len(found)} were read back."


def _exit_of(newest: Sequence[Document]) -> int:
    return Exit.OK if all(item["state"] in _USABLE for item in newest) else Exit.FAILED


def _lineage_words(lineage: dict[str, Any] | None) -> list[str]:
    if lineage is None:
        return ["  of what it was made is not told: an older runtime saved it"]
    changed = {"True": ", with changes", "False": ", unchanged"}.get(str(lineage.get("git_is_dirty")), "")
    commit = "" if lineage.get("git_commit") is None else f", git {lineage['git_commit']}{changed}"
    said = [
        f"  made by code {_or_dash(lineage.get('code_sha256'))}{commit}",
        f"  configuration {_or_dash(lineage.get('config_sha256'))}, data {_or_dash(lineage.get('data_sha256'))}",
        *(f"    {each['sha256']}  {each['source']}" for each in lineage.get("data") or ()),
        f"  after {lineage.get('parent') or 'no checkpoint'}; Python {_or_dash(lineage.get('python_version'))}",
    ]
    if lineage.get("spec_sha256"):
        said.append(f"  specification {lineage['spec_sha256']}")
    return said


def _or_dash(value: Any) -> Any:
    return "–" if value is None else value
