"""Texts about jobs and attempts: why a job has its state, its cause of end, and the budget that is charged."""

from collections.abc import Mapping, Sequence
from typing import Final

from markupsafe import Markup

from api.job_views import attempt_energy_view
from console.words import plural, short
from control.attempts.types import AttemptRecord
from control.checkpoints.types import CheckpointRecord
from control.core.events import EventRecord
from control.jobs import pins
from control.jobs.job_details import AttemptDetail, JobDetail
from control.jobs.job_energy import AttemptEnergy
from control.watch.types import VerdictRecord
from muster.domain.exit.causes import CAUSE_RULES, Avoidance, Budget, NextStep
from muster.domain.ids import AttemptId
from muster.domain.job.checkpoint_interval import interval_in_words
from muster.domain.job.dropped import dropped_in_words
from muster.domain.job.energy import energy_in_words
from muster.domain.job.verdicts import VerdictKind
from muster.domain.states import Cause, JobState, StopReason

PACE: Final[Mapping[str, str]] = {
    "data": "waiting for samples before a forward pass",
    "forward": "the forward pass, with the loss",
    "backward": "the backward pass: this rank's gradients",
    "collective": "exchanging gradients with the other ranks, as far as computing did not hide it",
    "optimizer": "clipping gradients, and the optimizer's step",
    "other": "everything else that the program does",
    "checkpoint": "between steps: delays by saves, and messages with the other ranks",
}

CAUSES: Final[Mapping[Cause, str]] = {
    Cause.SUCCEEDED: "it finished its work",
    Cause.USER_ERROR: "its program failed",
    Cause.GPU_OOM: "its program asked for more GPU memory than there is",
    Cause.HOST_OOM: "its program asked for more memory than the host has",
    Cause.HANG: "its program made no more steps",
    Cause.NCCL_TIMEOUT: "its ranks could not reach each other in time",
    Cause.DIVERGED: "its loss diverged",
    Cause.CORRUPTION: "its ranks computed different values",
    Cause.GPU_FAULT: "one of its GPUs failed",
    Cause.NODE_LOST: "a host was lost",
    Cause.LAUNCH_FAILED: "it could not be launched",
    Cause.PREFLIGHT_FAILED: "a check before the launch failed",
    Cause.RECLAIMED: "its GPUs were reclaimed",
    Cause.EVACUATED: "it was taken off faulty GPUs",
    Cause.MAINTENANCE: "planned work on its hosts",
    Cause.WALLTIME: "its wall time was over",
    Cause.BUDGET: "its budget was used up",
    Cause.IDLE: "its GPUs did nothing",
    Cause.CANCELLED: "it was cancelled",
    Cause.CHECKPOINT_CORRUPT: "its checkpoint could not be read",
    Cause.SAVE_FAILED: "its last checkpoint could not be saved",
    Cause.RESIZE: "it was given another size",
    Cause.HOT_SWAP: "one of its GPUs was swapped",
}
STOPS: Final[Mapping[StopReason, str]] = {
    StopReason.RECLAIM: "its GPUs are reclaimed",
    StopReason.CANCEL: "it is cancelled",
    StopReason.EVACUATION: "one of its GPUs is faulty",
    StopReason.MAINTENANCE: "there is planned work on its hosts",
    StopReason.WALLTIME: "its wall time is over",
    StopReason.BUDGET: "its budget is used up",
    StopReason.HOT_SWAP: "one of its GPUs is swapped",
    StopReason.RESIZE: "it gets another size",
    StopReason.HANG: "it makes no more steps",
    StopReason.IDLE: "its GPUs do nothing",
}
VERDICTS: Final[Mapping[VerdictKind, str]] = {
    VerdictKind.HANG: "hang",
    VerdictKind.STRAGGLER: "straggler",
    VerdictKind.DIVERGENCE: "divergence of replicas",
    VerdictKind.CORRUPTION: "silent corruption",
    VerdictKind.VALUE_FAULT: "wrong values",
}
_TRAINING_ENDS: Final[Mapping[str, str]] = {
    "done": "all steps are trained",
    "stopped_with_checkpoint": "stopped, with a checkpoint saved before",
    "stopped_without": "stopped, without a new checkpoint",
    "failed": "the program failed",
}
_ONWARD: Final[Mapping[NextStep, str]] = {
    NextStep.HOLD: "it is HELD until a person releases it",
    NextStep.RETRY_AT_ONCE: "it is tried again at once",
    NextStep.RETRY_AFTER_PAUSE: "it is tried again after a pause",
}
_AVOIDED: Final[Mapping[Avoidance, str]] = {
    Avoidance.GPUS: ", elsewhere than on those GPUs",
    Avoidance.NODE: ", without that host",
}


_REPORTED: Final = (
    "number",
    "from",
    "to",
    "cause",
    "reason",
    "proof",
    "why",
    "from_nodes",
    "to_nodes",
    "nodes",
    "exit",
    "message",
    "step",
    "generation",
    "deadline_at",
    "tainted",
    "threatens_correctness",
)


def state_of(cause: Cause) -> JobState:
    """Return the state of a job whose tone and shape fit such an end."""
    rule = CAUSE_RULES[cause]
    if rule.next_step is NextStep.SUCCEED:
        return JobState.SUCCEEDED
    if rule.budget is Budget.INFRASTRUCTURE:
        return JobState.RECOVERING
    return JobState.FAILED if rule.budget is Budget.JOB or rule.next_step is NextStep.FAIL else JobState.CANCELLED


def charged_to(cause: Cause) -> str:
    """Return whose restarts a cause uses up; empty where none is."""
    budget = CAUSE_RULES[cause].budget
    words = {Budget.JOB: "the job's own restarts", Budget.INFRASTRUCTURE: "the infrastructure: no restart of the job"}
    return words.get(budget, "")


def what_follows(cause: Cause) -> str:
    """Return what follows by the table of causes; empty where the job has ended by it."""
    rule = CAUSE_RULES[cause]
    return _ONWARD[rule.next_step] + _AVOIDED.get(rule.avoid, "") if rule.next_step in _ONWARD else ""


def training_ended(exit_word: str, step: int | None) -> str:
    words = _TRAINING_ENDS.get(exit_word, exit_word.replace("_", " "))
    return words if step is None else f"{words} (step {step:,})"


def reported_by(event: EventRecord) -> list[tuple[str, object]]:
    """Return the facts of an event of a job or an attempt, in an order that reads well."""
    shown = [(key, event.payload.get(key)) for key in _REPORTED]
    return [(key.replace("_", " "), _in_words(value)) for key, value in shown if value not in (None, "")]


def _in_words(value: object) -> object:
    """Return the value as text. GPUs by host, as in a placement's event, are counted; each is on the job's page."""
    if not isinstance(value, Mapping):
        return value
    counted = (Markup("{} on {}").format(plural(len(gpus), "GPU"), short(host)) for host, gpus in value.items())
    return Markup(", ").join(counted)


def hosts_in_words(detail: AttemptDetail, num_hosts: int) -> str:
    named = ", ".join(detail.node_names)
    more = num_hosts - len(detail.node_names)
    return f"{named} and {more:,} more" if more > 0 else named


def why(detail: JobDetail) -> str:
    """Return one sentence: why the job has its state."""
    job = detail.job
    last = detail.attempts[-1] if detail.attempts else None
    if job.state is JobState.ACTIVE and last is not None:
        return _active(detail, last)
    if job.state is JobState.RECOVERING and last is not None and last.attempt.cause is not None:
        return f"Attempt {last.attempt.number} ended: {CAUSES[last.attempt.cause]}. {_sentence(job.state_reason)}"
    if job.state is JobState.QUEUED:
        return f"Waits: {_sentence(job.state_reason, is_capital=False)}"
    return _sentence(job.state_reason)


def _active(detail: JobDetail, last: AttemptDetail) -> str:
    where = hosts_in_words(last, last.attempt.num_nodes or detail.job.requested().shape.nodes)
    if detail.job.cancel_requested_at is not None:
        return f"Cancelled: its programs on {where} are being stopped."
    if last.attempt.stop_reason is not None:
        return f"Attempt {last.attempt.number} on {where} must leave, because {STOPS[last.attempt.stop_reason]}."
    doing = {"PLACED": "is placed on", "CLAIMING": "starts on", "LOST": "has lost contact with"}
    return f"Attempt {last.attempt.number} {doing.get(last.attempt.state, 'runs on')} {where}."


def _sentence(text: str, *, is_capital: bool = True) -> str:
    text = text.strip()
    if not text:
        return ""
    head = text[0].upper() if is_capital else text[0]
    return f"{head}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")


def by_attempt(verdicts: Sequence[VerdictRecord]) -> dict[AttemptId, list[VerdictRecord]]:
    """Return the verdicts of each attempt."""
    found: dict[AttemptId, list[VerdictRecord]] = {}
    for each in verdicts:
        found.setdefault(each.attempt_id, []).append(each)
    return found


def saves(attempt: AttemptRecord) -> str:
    """Return how often it saves; empty where its program names a number of steps."""
    return "" if attempt.checkpoint_interval is None else interval_in_words(attempt.checkpoint_interval)


def left_out(detail: AttemptDetail) -> str:
    """Return what it reported or printed beyond a limit; empty where it reached none."""
    return dropped_in_words(detail.dropped)


def made_of(checkpoint: CheckpointRecord) -> str:
    """Return the beginnings of the hashes of its code, configuration and data; empty where none were reported."""
    lineage = checkpoint.manifest.get("lineage") or {}
    code = lineage.get("git_commit") or lineage.get("code_sha256")
    others = (("bundle", "bundle"), ("config", "config_sha256"), ("data", "data_sha256"))
    shown = (("code", code), *((what, lineage.get(name)) for what, name in others))
    return " · ".join(f"{what} {value[:8]}" for what, value in shown if value)


def pin_text(checkpoint: CheckpointRecord) -> str:
    """Return the state of its pin; empty where it is not pinned."""
    return pins.pin_text(checkpoint)


def energy(attempt: AttemptRecord) -> str:
    """Return its energy; empty until it has ended and its counters' readings have arrived."""
    if attempt.energy is None:
        return ""
    return energy_in_words(attempt_energy_view(AttemptEnergy.of_kept(attempt.energy))).removeprefix("energy: ")
