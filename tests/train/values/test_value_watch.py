"""A level that stays high is a fault once, under a rule that rolls back; then it is the usual one."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from muster.train.checkpoint.state import Trained  # noqa: E402  # it imports torch
from muster.train.parallel.ranks import Agreement  # noqa: E402
from muster.train.runtime.divergence import DivergedError  # noqa: E402
from muster.train.values.spikes import PERSISTENT  # noqa: E402
from muster.train.values.value_watch import ValueWatch  # noqa: E402

NUM_LOW = 40


class Listener:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, _kind: str, **fields: Any) -> None:
        self.sent.append(fields)


def train(watch: ValueWatch, *, every: int = 1) -> None:
    """Train through low losses, and then through lasting high ones. Of ``every`` steps, one reports its loss."""
    for step in range(1, every * (NUM_LOW + PERSISTENT) + 1):
        watch.begin(step)
        if step % every == 0:
            watch.note_loss(1.0 if step <= every * NUM_LOW else 10.0)
        watch.agree(step, watch.figures(step))


def watching(listener: Listener, *, ends_persistent: bool = True) -> ValueWatch:
    model = torch.nn.Linear(1, 1)
    channel: Any = listener
    trained = Trained(model, None, None, {})
    return ValueWatch(trained, model, Agreement(0, 1, None), channel, every=None, ends_persistent=ends_persistent)


def test_the_fault_begins_at_the_first_of_seldom_reported_losses() -> None:
    watch = watching(Listener())
    with pytest.raises(DivergedError) as caught:
        train(watch, every=10)
    assert caught.value.step == 10 * (NUM_LOW + 1)
    assert watch.first_bad_step(caught.value) == 10 * (NUM_LOW + 1)
    assert str(caught.value) == (
        "diverged at step 410: the loss is 10 at step 900, and was 1 before; 50 values in a row are as high"
    )


def test_each_spike_is_sent_and_only_the_first_and_the_lasting_one_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listener = Listener()
    train(watching(listener, ends_persistent=False))
    assert [each["length"] for each in listener.sent] == list(range(1, PERSISTENT + 1))
    assert [each["length"] for each in listener.sent if each["is_shown"]] == [1, PERSISTENT]
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_the_same_shift_after_a_rollback_is_accepted() -> None:
    watch = watching(Listener())
    with pytest.raises(DivergedError) as caught:
        train(watch)
    assert caught.value.step == NUM_LOW + 1
    watch.rolled_back(0, caught.value)
    train(watch)
    assert watch.unusual_step == NUM_LOW + PERSISTENT, "it is reported all the same"
