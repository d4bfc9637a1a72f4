"""Effect of a damaged checkpoint on its reader, ours and torch's own; and commits of an attempt after a newer one
began.
"""

import random
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from muster.train.checkpoint import fences, generations, state
from muster.train.checkpoint.fences import StaleFenceError
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import FileRecord, Manifest
from muster.train.runtime.durable_files import HashingFile

RANKS: Final = 2
Damage = Callable[[Path, Path, random.Random], None]


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``times``: damaged checkpoints, and overtaken attempts; ``values``: of each
    rank's tensor.
    """

    times: int
    values: int


SIZES: Final = Sizes(full=Size(times=1_000, values=20_000), smallest=Size(times=8, values=2_000))


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-damage-") as name:
        folder = Path(name)
        ours = _refused(folder / "ours", partial(_save_ours, size), _reads_ours, size)
        theirs = _refused(folder / "theirs", partial(_save_theirs, size), partial(_reads_theirs, size), size)
        late = sum(_commits_late(folder / "fences" / str(number), number) for number in range(size.times))
    peers = {f"DCP, {kind} %": 100 * share for kind, share in theirs.items()}
    refused, of = 100 * min(ours.values()), f"of {size.times}"
    yield [
        Figure("damaged checkpoints refused", refused, "%", 100.0, "higher", peers, basis=Basis.COUNT),
        Figure("commits of an attempt that was overtaken", float(late), of, 0.0, basis=Basis.COUNT),
    ]


# --- damage


def _flip(place: Path, _: Path, rng: random.Random) -> None:
    path = _any_file(place, rng)
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _truncate(place: Path, _: Path, rng: random.Random) -> None:
    path = _any_file(place, rng)
    with path.open("r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size))


def _tear(place: Path, other: Path, rng: random.Random) -> None:
    """Overwrite it from its beginning by a later save of the same names, and not to its end."""
    path = _any_file(place, rng)
    before, later = path.read_bytes(), (other / path.name).read_bytes()
    cut = rng.randrange(1, len(later))
    torn = later[:cut] + before[cut:]
    path.write_bytes(torn if torn not in (before, later) else torn[:-1])


def _lose(place: Path, _: Path, rng: random.Random) -> None:
    _any_file(place, rng).unlink()


KINDS: Final[dict[str, Damage]] = {"flipped bit": _flip, "truncated": _truncate, "torn": _tear, "missing": _lose}


def _any_file(place: Path, rng: random.Random) -> Path:
    """Return a file that holds values: the other files name them."""
    return rng.choice(sorted(path for path in place.iterdir() if path.suffix in {".pt", ".distcp"}))


def _refused(
    folder: Path, saves: Callable[[Path, float], Path], reads: Callable[[Path], None], size: Size
) -> dict[str, float]:
    """Return, for each kind of damage, the share that is refused: a file that is read without an error
    counts as used.
    """
    place, other = saves(folder / "good", 1.0), saves(folder / "other", 2.0)
    reads(place)
    kept = shutil.copytree(place, folder / "kept")
    chance, counted = random.Random(7), {}  # noqa: S311  # the same damage in every run
    for kind, damage in KINDS.items():
        num_refused = 0
        for _ in range(size.times // len(KINDS)):
            shutil.rmtree(place)
            shutil.copytree(kept, place)
            damage(place, other, chance)
            num_refused += not _is_read(reads, place)
        counted[kind] = num_refused / (size.times // len(KINDS))
    return counted


def _is_read(reads: Callable[[Path], None], place: Path) -> bool:
    try:
        reads(place)
    except (Exception, CheckpointException):  # noqa: BLE001  # any refusal counts; torch's is no Exception
        return False
    return True


def _tensors(size: Size, value: float) -> dict[str, torch.Tensor]:
    num = size.values
    return {f"weight{number}": torch.full((num,), value) + torch.arange(num) for number in range(RANKS)}


def _save_ours(size: Size, folder: Path, value: float) -> Path:
    generation = Generation(1, 1)
    generations.prepare(folder, generation)
    files = []
    for rank, (name, tensor) in enumerate(_tensors(size, value).items()):

        def dump(file: HashingFile, name: str = name, tensor: torch.Tensor = tensor) -> None:
            state.dump({name: tensor}, file)

        files.append(generations.write_part(folder, generation, rank, dump))
    generations.commit(folder, _manifest(1, files))
    return folder / generation.name


def _reads_ours(place: Path) -> None:
    folder = place.parents[1]
    about = generations.read_manifest(folder, Generation(1, 1))
    for content in generations.verified_parts(folder, about):
        state.unpacked(content)


def _save_theirs(size: Size, folder: Path, value: float) -> Path:
    save(_tensors(size, value), checkpoint_id=folder, no_dist=True)
    return folder


def _reads_theirs(size: Size, place: Path) -> None:
    loaded: dict[str, Any] = _tensors(size, 0.0)
    load(loaded, checkpoint_id=place, no_dist=True)


# --- fences


def _commits_late(folder: Path, number: int) -> bool:
    """Return whether an attempt under fence 1 committed anything after fence 2 had begun, both as fast as they can."""
    fences.begin(folder, 1)
    chance = random.Random(number)  # noqa: S311  # when the second begins
    seen: set[Generation] = set()
    is_over = threading.Event()

    def overtake() -> None:
        is_over.wait(chance.random() * 0.006)
        fences.begin(folder, 2)
        seen.update(generations.list_generations(folder))

    second = threading.Thread(target=overtake)
    second.start()
    try:
        for step in range(1, 100):
            generations.prepare(folder, Generation(step, 1))
            record = generations.write_part(folder, Generation(step, 1), 0, _dump)
            generations.commit(folder, _manifest(step, [record]))
    except StaleFenceError:
        pass
    finally:
        is_over.set()
        second.join()
    return bool(set(generations.list_generations(folder)) - seen)


def _dump(file: HashingFile) -> None:
    file.write(b"weights")


def _manifest(step: int, files: list[FileRecord]) -> Manifest:
    return Manifest(
        step=step,
        fence=1,
        attempt_id="att_1",
        committed_at_unix_ms=1,
        world_size=len(files),
        position=step,
        torch_version=torch.__version__,
        loss=None,
        longest_save_s=0.0,
        files=tuple(files),
    )
