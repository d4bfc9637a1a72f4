"""The generation from which the ranks continue, and when they do not begin at all."""

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch", reason="TORCH IS NOT INSTALLED: nothing is loaded")

from muster.train.checkpoint.generations import Generation  # noqa: E402
from muster.train.checkpoint.loading import Loading  # noqa: E402  # it imports torch
from muster.train.checkpoint.retention_thread import RetentionWorker  # noqa: E402
from muster.train.checkpoint.scrub import ScrubRule  # noqa: E402  # as above
from muster.train.checkpoint.state import Trained  # noqa: E402  # as above
from muster.train.checkpoint.storage.object_store import ObjectStore  # noqa: E402
from muster.train.report.wire import Channel  # noqa: E402
from muster.train.runtime.environment import Resume  # noqa: E402
from tests.train.checkpoint.storage.test_object_store import commit  # noqa: E402
from tests.train.object_stores import Prefix  # noqa: E402


class Together:
    """What ranks agree on, of two that are threads here."""

    def __init__(self) -> None:
        self._reported: list[Any] = [None, None]
        self._all_there = Barrier(2, timeout=30)

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._reported[rank] = value
        self._all_there.wait()
        said = list(self._reported)
        self._all_there.wait()
        return said


class Rank:
    world_size = 2

    def __init__(self, rank: int, together: Together) -> None:
        self.rank = rank
        self._together = together

    def gather(self, value: Any) -> list[Any]:
        return self._together.gather(self.rank, value)

    def from_first(self, value: Any) -> Any:
        return self._together.gather(self.rank, value)[0]


class Busy:
    """A bucket whose store has too much to do for what ``is_refused``."""

    def __init__(self, prefix: Prefix, is_refused: Callable[[str], bool]) -> None:
        self._bucket = prefix.bucket()
        self._is_refused = is_refused
        self.requested: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def _meet(self, key: str) -> None:
        self.requested.append(key)
        if self._is_refused(key):
            raise OSError(errno.EIO, "get was refused: SlowDown (HTTP 503)", key)

    def size(self, key: str) -> int:
        self._meet(key)
        return self._bucket.size(key)

    def listed(self, below: str = "") -> Any:
        self._meet(below)
        return self._bucket.listed(below)


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ("gen-1/rank-00001", "step-00000008/gen-1 cannot be read now.* rank 1: .*SlowDown"),
        ("gen-1/rank-00000", "step-00000008/gen-1 cannot be read now.* rank 0: .*SlowDown"),
        ("gen-1/MANIFEST", "step-00000008/gen-1 cannot be read now.* rank 0: .*SlowDown"),
        ("step-", "the checkpoints cannot be read now.* rank 0: .*SlowDown"),
    ],
)
def test_a_store_that_is_busy_lets_no_rank_begin_with_less(prefix: Prefix, refused: str, words: str) -> None:
    newest = [commit(prefix.store(), step) for step in (4, 8)][-1]
    together = Together()
    buckets = [Busy(prefix, lambda key: refused in key) for _ in range(2)]
    trained = Trained(torch.nn.Linear(1, 1), None, None, {})

    def load(rank: int) -> str:
        store = ObjectStore(cast("Any", buckets[rank]))
        channel, resume = Channel(None), Resume()
        upkeep = RetentionWorker(store, channel, resume, ScrubRule(), fence=2, keep=2)
        loading = Loading(store, cast("Any", Rank(rank, together)), channel, resume, upkeep, keyring=None)
        with pytest.raises(OSError, match=words) as found:
            loading.load(trained)
        return str(found.value)

    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(load, range(2))
    assert first == second
    older = Generation(4, newest.fence).name
    assert not [key for bucket in buckets for key in bucket.requested if older in key], "nothing older was tried"
