"""Reports on the values of a training: spikes, values that are not finite, replicas that differ, rollbacks.

They are on the attempt's timeline. Reported by a tenant's program, they judge no GPU. A checkpoint is
GOOD only enough steps after an unusual value.
"""

from typing import Any

import msgspec

from muster.db.models import Attempt
from muster.wire.training import AnyValueMessage, ReplicaFault, Rerun, RolledBack, Spiked, ValueFault


def note_unusual(attempt: Attempt, message: AnyValueMessage) -> None:
    """Store the newest step with an unusual value. A rollback forgets those after the step that it restored."""
    if isinstance(message, Rerun):
        return
    known = attempt.unusual_step
    if not isinstance(message, RolledBack):
        attempt.unusual_step = message.step if known is None else max(known, message.step)
    elif known is not None:
        attempt.unusual_step = min(known, message.step)


def event_of(message: AnyValueMessage) -> tuple[str, dict[str, Any]]:
    """Return the kind and the payload of the event on the attempt's timeline."""
    if isinstance(message, Rerun):
        fields = ("step", "from_step", "place", "fault", "found", "is_again", "tensor", "reason")
        return "attempt.steps_run_again", {**{name: getattr(message, name) for name in fields}, "ranks": message.ranks}
    payload: dict[str, Any] = msgspec.structs.asdict(message)
    match message:
        case Spiked():
            del payload["is_shown"]
            words = {"loss": "the loss", "grad_norm": "the gradient norm"}[message.what]
            reason = f"{words} is {message.value:.4g} at step {message.step}, and was {message.usual:.4g} before"
            return "attempt.spike", {**payload, "reason": reason}
        case ValueFault():
            return "attempt.value_fault", payload
        case ReplicaFault():
            return "attempt.replica_fault", payload
        case RolledBack():
            passed = message.skipped_to - message.skipped_from
            words = message.skipped or (f"{passed:,} samples" if passed > 0 else "")
            more = f"; {words} are skipped" if words else ""
            reason = f"rolled back from step {message.from_step} to step {message.step}{more}"
            return "attempt.rolled_back", {**payload, "reason": reason}
