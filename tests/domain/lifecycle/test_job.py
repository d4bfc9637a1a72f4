"""The job's machine: every edge that it takes, and what changes nothing."""

from dataclasses import replace

import pytest

from muster.domain.exit.causes import CAUSE_RULES, NextStep
from muster.domain.lifecycle import job
from muster.domain.lifecycle.model import JobLifecycle, Verdict
from muster.domain.states import TERMINAL_JOB_STATES, Cause, JobState
from tests.domain.lifecycle.lives import JOB, SUCCEEDED, TIMERS

J = JobState
QUEUED = JobLifecycle(JOB)
ACTIVE = replace(QUEUED, state=J.ACTIVE)
EVENTS: list[job.Event] = [
    job.AttemptEnded(SUCCEEDED), job.CancelRequested(), job.HoldRequested("why"), job.ReleaseRequested(), job.Tick(),
]  # fmt: skip


def after(life: JobLifecycle, *events: job.Event, now_ms: int = 0) -> JobLifecycle:
    for event in events:
        life, _ = job.step(life, event, now_ms, TIMERS)
    return life


def ended(cause: Cause) -> job.AttemptEnded:
    return job.AttemptEnded(Verdict(cause, "proof"))


@pytest.mark.parametrize("cause", Cause)
def test_each_cause_leads_where_its_rule_states(cause: Cause) -> None:
    onward = CAUSE_RULES[cause].next_step
    states = {
        NextStep.SUCCEED: J.SUCCEEDED,
        NextStep.FAIL: J.FAILED,
        NextStep.CANCEL: J.CANCELLED,
        NextStep.HOLD: J.HELD,
    }
    state = states.get(onward, J.RECOVERING)
    assert after(replace(ACTIVE, max_restarts=1), ended(cause)).state is state


def test_the_jobs_own_faults_use_up_its_restarts() -> None:
    life = after(replace(ACTIVE, max_restarts=1), ended(Cause.USER_ERROR))
    assert (life.state, life.restarts_used, life.next_try_ms) == (J.RECOVERING, 1, TIMERS.retry_backoff_ms)
    waiting = after(life, job.Tick(), now_ms=TIMERS.retry_backoff_ms - 1)
    assert waiting == life
    life = after(life, job.Tick(), job.Placed(), now_ms=TIMERS.retry_backoff_ms)
    assert after(life, ended(Cause.USER_ERROR)).state is J.FAILED


def test_progress_gives_the_restarts_back_and_shortens_the_pause() -> None:
    life = replace(ACTIVE, max_restarts=3)
    for _ in range(3):
        life = after(life, ended(Cause.USER_ERROR), job.Tick(), job.Placed(), now_ms=1 << 40)
    assert life.restarts_used == 3
    progressed = replace(ended(Cause.USER_ERROR), has_progressed=True)
    life = after(life, progressed)
    assert (life.state, life.restarts_used, life.next_try_ms) == (J.RECOVERING, 1, TIMERS.retry_backoff_ms)
    assert after(ACTIVE, progressed).state is J.FAILED, "a job that allowed no restart gets none"


def test_out_of_gpu_memory_doubles_the_accumulation_at_once_and_free_of_charge_up_to_its_bound() -> None:
    life = replace(ACTIVE, max_restarts=1, max_oom_doublings=2)
    for doublings in (1, 2):
        life = after(life, ended(Cause.GPU_OOM), now_ms=7)
        assert (life.state, life.oom_doublings, life.restarts_used, life.next_try_ms) == (J.RECOVERING, doublings, 0, 7)
        assert f"continues with {2**doublings} times as many pieces a batch" in life.reason
        life = after(life, job.Tick(), job.Placed(), now_ms=7)
    life = after(life, ended(Cause.GPU_OOM))
    assert (life.oom_doublings, life.restarts_used) == (2, 1), "then it is a fault as any other"
    life = after(life, job.Tick(), job.Placed(), ended(Cause.GPU_OOM), now_ms=1 << 40)
    assert life.state is J.FAILED
    assert life.reason.endswith("accumulate their gradients")


def test_only_gpu_memory_that_is_short_and_allowed_doubles_anything() -> None:
    assert after(ACTIVE, ended(Cause.GPU_OOM)).state is J.FAILED
    host = after(replace(ACTIVE, max_oom_doublings=2), ended(Cause.HOST_OOM))
    assert (host.state, host.oom_doublings) == (J.FAILED, 0)
    assert "host memory, not the GPU's" in host.reason
    cancelled = after(replace(ACTIVE, max_oom_doublings=2), job.CancelRequested(), ended(Cause.GPU_OOM))
    assert cancelled.state is J.CANCELLED


def test_the_infrastructures_faults_never_count() -> None:
    life = ACTIVE
    for _ in range(20):
        life = after(life, ended(Cause.NODE_LOST), job.Tick(), job.Placed(), now_ms=1 << 40)
    assert (life.state, life.restarts_used) == (J.ACTIVE, 0)


def test_launches_that_fail_in_a_row_hold_the_job_for_a_person() -> None:
    life = ACTIVE
    for _ in range(TIMERS.launch_failures_before_hold - 1):
        life = after(life, ended(Cause.LAUNCH_FAILED), job.Tick(), job.Placed(), now_ms=1 << 40)
    assert after(life, ended(Cause.LAUNCH_FAILED)).state is J.HELD
    between = after(life, replace(ended(Cause.LAUNCH_FAILED), has_progressed=True))
    assert (between.state, between.launch_failures) == (J.RECOVERING, 1), "what trained meanwhile was no row"


@pytest.mark.parametrize("cause", [Cause.GPU_FAULT, Cause.NCCL_TIMEOUT])
def test_faults_of_gpus_and_network_cost_no_restart_and_in_a_row_without_progress_are_for_a_person(
    cause: Cause,
) -> None:
    life = ACTIVE
    for _ in range(TIMERS.launch_failures_before_hold - 1):
        life = after(life, ended(cause), job.Tick(), job.Placed(), now_ms=1 << 40)
        assert (life.state, life.restarts_used) == (J.ACTIVE, 0)
    assert after(life, replace(ended(cause), has_progressed=True)).state is J.RECOVERING
    held = after(life, ended(cause))
    assert (held.state, held.reason) == (
        J.HELD,
        f"{TIMERS.launch_failures_before_hold} attempts failed in a row; the last: proof",
    )


def test_a_program_that_states_that_it_would_end_so_again_is_not_tried_again() -> None:
    final = replace(ended(Cause.USER_ERROR), is_final=True)
    assert after(replace(ACTIVE, max_restarts=3), final).state is J.FAILED


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (Cause.DIVERGED, J.FAILED),
        (Cause.SAVE_FAILED, J.HELD),
        (Cause.CORRUPTION, J.HELD),
        (Cause.USER_ERROR, J.RECOVERING),
    ],
)
def test_the_second_end_in_a_row_ends_or_holds_by_its_cause(cause: Cause, state: JobState) -> None:
    life = replace(ACTIVE, max_restarts=3)
    assert after(life, ended(cause)).state is J.RECOVERING
    assert after(life, replace(ended(cause), recurs=True)).state is state


@pytest.mark.parametrize("cause", [Cause.USER_ERROR, Cause.LAUNCH_FAILED, Cause.PREFLIGHT_FAILED])
def test_a_job_whose_start_lacks_a_part_waits_for_a_person_at_once_and_keeps_its_restarts(cause: Cause) -> None:
    lacking = replace(ended(cause), has_lacked=True)
    waiting = after(replace(ACTIVE, max_restarts=3), lacking)
    assert (waiting.state, waiting.restarts_used, waiting.launch_failures) == (J.HELD, 0, 0)
    assert waiting.reason == f"{cause}: proof; held, because another attempt would end the same way until this is there"
    again = after(replace(ACTIVE, max_restarts=3, launch_failures=1), lacking)
    assert (again.state, again.launch_failures) == (J.HELD, 0), "once released, it is searched for on other hosts"
    last = after(replace(ACTIVE, max_restarts=0), lacking)
    assert last.state is (J.FAILED if cause is Cause.USER_ERROR else J.HELD), "one that may not restart is not held"


def test_the_pause_before_a_restart_doubles_up_to_its_cap() -> None:
    timers = replace(TIMERS, retry_backoff_ms=1_000, retry_backoff_max_ms=7_000)
    pauses = []
    for used in (0, 1, 2, 3, 40):
        life = replace(ACTIVE, max_restarts=99, restarts_used=used)
        pauses.append(job.step(life, ended(Cause.USER_ERROR), 0, timers)[0].next_try_ms)
    assert pauses == [1_000, 2_000, 4_000, 7_000, 7_000]


def test_a_proof_that_comes_in_the_pause_gives_the_restart_back() -> None:
    charged = after(replace(ACTIVE, max_restarts=1), ended(Cause.USER_ERROR))
    excused = after(charged, job.Excused("XID 79"))
    assert (excused.state, excused.restarts_used, excused.reason) == (J.RECOVERING, 0, "gpu_fault: XID 79")
    assert excused.next_try_ms == charged.next_try_ms
    for life in (ACTIVE, replace(charged, restarts_used=0), replace(charged, state=J.FAILED)):
        assert after(life, job.Excused("XID 79")) == life


def test_a_suspected_program_is_on_hold_whatever_its_attempt_ended_of_unless_that_ends_the_job() -> None:
    def ended_suspect(cause: Cause) -> job.AttemptEnded:
        return job.AttemptEnded(Verdict(cause, "proof"), suspicion="suspected")

    for cause, rule in CAUSE_RULES.items():
        life = after(replace(ACTIVE, max_restarts=1), ended_suspect(cause))
        is_over = rule.next_step in {NextStep.SUCCEED, NextStep.FAIL, NextStep.CANCEL}
        assert (life.state is J.HELD) == (not is_over)
        assert is_over or (life.reason, life.next_try_ms) == ("suspected", None)
    cancelled = after(replace(ACTIVE, is_cancel_requested=True), ended_suspect(Cause.GPU_FAULT))
    assert cancelled.state is J.CANCELLED


def test_a_hold_is_for_what_waits_to_run() -> None:
    recovering = after(replace(ACTIVE, max_restarts=1), ended(Cause.USER_ERROR))
    for life in (QUEUED, recovering):
        held = after(life, job.HoldRequested("why"), job.Tick(), now_ms=1 << 40)
        assert (held.state, held.reason, held.next_try_ms) == (J.HELD, "why", None)
    assert after(ACTIVE, job.HoldRequested("why")) == ACTIVE


def test_a_cancel_waits_for_the_attempt_to_end() -> None:
    life, commands = job.step(ACTIVE, job.CancelRequested(), 0, TIMERS)
    assert (life.state, commands) == (J.ACTIVE, (job.StopAttempt(),))
    assert job.step(life, job.CancelRequested(), 0, TIMERS) == (life, ())
    assert after(life, ended(Cause.NODE_LOST)).state is J.CANCELLED


@pytest.mark.parametrize("state", [J.QUEUED, J.HELD, J.RECOVERING])
def test_a_cancel_before_placement_is_at_once(state: JobState) -> None:
    assert after(replace(QUEUED, state=state), job.CancelRequested()).state is J.CANCELLED


def test_hold_and_release() -> None:
    assert after(QUEUED, job.HoldRequested("why")).state is J.HELD
    assert after(QUEUED, job.HoldRequested("why"), job.ReleaseRequested()).state is J.QUEUED


@pytest.mark.parametrize("state", sorted(TERMINAL_JOB_STATES))
@pytest.mark.parametrize("event", EVENTS)
def test_terminal_jobs_never_change(state: JobState, event: job.Event) -> None:
    life = replace(QUEUED, state=state)
    assert job.step(life, event, 1 << 40, TIMERS) == (life, ())
