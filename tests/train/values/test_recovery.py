"""When training continues after a fault that is not rolled back, and the reason that is reported."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from muster.train.checkpoint.keys import MissingKeyError  # noqa: E402  # it imports torch
from muster.train.checkpoint.state import Trained  # noqa: E402
from muster.train.data.cursors import Cursors  # noqa: E402
from muster.train.parallel.ranks import Agreement  # noqa: E402
from muster.train.parallel.shards import CoverageError  # noqa: E402
from muster.train.reruns.rerun import Rerun  # noqa: E402
from muster.train.runtime.divergence import DivergedError  # noqa: E402
from muster.train.values.on_fault import ValueFaultRule  # noqa: E402
from muster.train.values.recovery import Recovery, _has_live_loader  # noqa: E402
from muster.train.values.replica_check import ReplicaError  # noqa: E402
from muster.train.values.replica_judge import ReplicaFault  # noqa: E402

OF_BUFFERS = ReplicaError(ReplicaFault((1,), (0, 1), "best", 1, 12, 9, is_of_buffers=True))
UNDECIDED = ReplicaError(ReplicaFault((), (0, 1), "weight", 1, 12, 9))


def recovery() -> Recovery:
    ranks, trained = Agreement(0, 1, None), Trained(torch.nn.Linear(1, 1), None, None, {})
    silent: Any = SimpleNamespace(send=lambda *_, **__: None)
    values: Any = SimpleNamespace(first_bad_step=lambda _: 10)
    rerun = Rerun(trained, ranks, silent, None)
    return Recovery(ValueFaultRule(), ranks, silent, trained, Cursors(0, 0, 1), values, rerun)


def roll_back(found: Recovery, failure: Exception) -> None:
    """Try a rollback whose restore fails."""

    def fail(*_: object, **__: object) -> None:
        raise failure

    store: Any = SimpleNamespace(roll_back=fail)
    saves: Any = SimpleNamespace()
    assert found.roll_back(12, OF_BUFFERS, store, saves) is None


@pytest.mark.parametrize(
    ("failure", "continues"),
    [(CoverageError("no scheduler was saved"), False), (MissingKeyError("k"), True), (OSError("no answer"), True)],
)
def test_training_continues_only_with_a_state_that_no_restore_has_changed(
    failure: Exception, *, continues: bool
) -> None:
    """Model and optimizer are restored before a scheduler is found missing."""
    found = recovery()
    roll_back(found, failure)
    assert found.continues(OF_BUFFERS) is continues


def test_a_reason_is_of_the_last_fault_alone_and_none_is_given_under_stop() -> None:
    found = recovery()
    roll_back(found, OSError("no answer"))
    assert found.why_not == "; not rolled back: no checkpoint could be restored: no answer"
    fault = DivergedError("diverged at step 13", step=13)
    assert found.first_of(13, fault, None) is fault
    assert found.roll_back(13, fault, None, None) is None
    assert found.why_not == ""


@pytest.mark.parametrize(
    ("is_repeated", "is_decided", "is_offered", "of_copies", "of_values"),
    [
        (False, False, False, 16, 17),
        (False, False, True, 16, 17),
        (True, False, True, 16, 16),
        (True, False, False, 17, 17),
        (True, True, True, 16, 17),
    ],
    ids=["once", "once, offered", "repeated, offered", "repeated, not offered", "decided elsewhere"],
)
def test_a_repeated_fault_ends_as_corruption_only_if_other_gpus_decide(
    of_copies: int, of_values: int, *, is_repeated: bool, is_decided: bool, is_offered: bool
) -> None:
    found = recovery()
    rerun: Any = SimpleNamespace(is_repeated=is_repeated, is_decided=is_decided, is_offered=is_offered)
    found._rerun = rerun
    assert found.code_of(UNDECIDED) == of_copies
    assert found.code_of(OF_BUFFERS) == 16, "most copies name a rank"
    assert found.code_of(DivergedError("diverged at step 13", step=13)) == of_values


class Hostile:
    """A sampler of a program, whose length is not known."""

    def __init__(self, fault: Exception) -> None:
        self.fault = fault

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        raise self.fault


@pytest.mark.parametrize("fault", [TypeError("no length"), ValueError("not yet known")], ids=repr)
def test_no_fault_of_a_sampler_ends_a_recovery(fault: Exception) -> None:
    """Other ranks wait meanwhile. A loader that has begun and may have more counts as in the middle of its data."""
    iterator = iter(torch.utils.data.DataLoader(range(4), sampler=Hostile(fault)))
    next(iterator)
    assert _has_live_loader()
