"""The launcher's machine: claim, start, stop, report, forget; and restarts at any point."""

from dataclasses import replace

import pytest

from muster.domain.ids import AttemptId, Fence
from muster.domain.lifecycle import host
from muster.domain.lifecycle.host import HostLedger, Phase
from tests.domain.lifecycle.lives import ATTEMPT, FENCE, JOB, granted, ledger_after, reported_to_claim

NEWER, NEWER_FENCE = AttemptId("att_2"), Fence(FENCE + 1)
CLAIMING = ledger_after(reported_to_claim())
CLAIMED = ledger_after(granted(), ledger=CLAIMING)
STARTED = ledger_after(host.ProgramStarted(ATTEMPT), ledger=CLAIMED)
EXITED = ledger_after(host.ProgramExited(ATTEMPT), ledger=STARTED)
CLEAN = ledger_after(host.ProvedClean(ATTEMPT), ledger=EXITED)
PHASES = [CLAIMING, CLAIMED, STARTED, EXITED, CLEAN]


def stop_now(attempt_id: AttemptId = ATTEMPT, kill_after_ms: int = 0) -> host.HeartbeatAnswered:
    return host.HeartbeatAnswered(0, 0, stops={attempt_id: ("cancel", kill_after_ms)})


def test_a_record_goes_through_its_phases_and_is_forgotten() -> None:
    assert [ledger.records[ATTEMPT].phase for ledger in PHASES] == list(Phase)
    ledger, commands = host.step(CLEAN, host.HeartbeatAnswered(0, 1000, forget=(ATTEMPT,)), 0)
    assert not ledger.records
    assert commands == (host.Forget(ATTEMPT),)


@pytest.mark.parametrize("ledger", [CLAIMED, STARTED])
def test_the_host_stops_what_is_past_its_lease(ledger: HostLedger) -> None:
    assert host.step(ledger, host.Tick(), 999)[0].records[ATTEMPT].kill_at_ms is None
    fenced, commands = host.step(ledger, host.Tick(), 1000)
    assert fenced.records[ATTEMPT].kill_at_ms == 1000
    assert commands == (host.StopProgram(ATTEMPT, 1000, "lease"),)


def test_a_lease_counts_from_sending_and_never_shortens() -> None:
    ledger = ledger_after(host.HeartbeatAnswered(500, 1000), host.HeartbeatAnswered(200, 1000), ledger=STARTED)
    assert ledger.records[ATTEMPT].lease_until_ms == 1500


def test_a_grant_that_comes_after_its_lease_starts_nothing() -> None:
    ledger, commands = host.step(CLAIMING, granted(), 1000)
    assert ledger.records[ATTEMPT].phase is Phase.EXITED
    assert host.StartProgram(ATTEMPT) not in commands


def test_kill_times_only_come_nearer() -> None:
    ledger = ledger_after(stop_now(kill_after_ms=50), stop_now(kill_after_ms=90), ledger=STARTED)
    assert ledger.records[ATTEMPT].kill_at_ms == 50


def test_a_newer_attempt_waits_until_the_older_one_is_gone() -> None:
    ledger, commands = host.step(
        ledger_after(reported_to_claim(NEWER, NEWER_FENCE), ledger=STARTED), granted(NEWER), 10
    )
    assert commands == (host.StopProgram(ATTEMPT, 10, "stale"),)
    assert host.step(ledger, host.Tick(), 20)[1] == ()
    assert host.StartProgram(NEWER) not in host.restarted(ledger, "boot1")[1]
    ledger = ledger_after(host.ProgramExited(ATTEMPT), ledger=ledger)
    assert host.step(ledger, host.Tick(), 30)[1] == (host.StartProgram(NEWER),)


def test_an_older_attempt_granted_late_never_starts_next_to_a_newer_one() -> None:
    ledger = ledger_after(reported_to_claim(), reported_to_claim(NEWER, NEWER_FENCE), granted(NEWER))
    ledger, commands = host.step(ledger, granted(), 10)
    assert ledger.records[ATTEMPT].phase is Phase.EXITED
    assert host.StartProgram(ATTEMPT) not in commands


def test_a_refused_claim_is_reported_as_never_started() -> None:
    ledger, commands = host.step(CLAIMING, host.ClaimRefused(ATTEMPT), 10)
    assert ledger.records[ATTEMPT].phase is Phase.EXITED
    assert host.Report(ATTEMPT) in commands


def test_an_older_cluster_epoch_is_refused() -> None:
    ledger = ledger_after(reported_to_claim(fence=Fence((2 << 32) + 1)))
    assert ledger.highest_epoch == 2
    again, _ = host.step(ledger, reported_to_claim(NEWER, Fence((1 << 32) + 9)), 0)
    assert NEWER not in again.records


def test_a_reboot_forgets_records_but_not_the_epoch() -> None:
    ledger, commands = host.restarted(STARTED, "boot2")
    assert (ledger.boot_id, ledger.highest_epoch, dict(ledger.records)) == ("boot2", 1, {})
    assert commands == (host.Forget(ATTEMPT),)


@pytest.mark.parametrize(
    ("ledger", "command"),
    [
        (CLAIMING, host.SendClaim(ATTEMPT, FENCE)),
        (CLAIMED, host.StartProgram(ATTEMPT)),
        (STARTED, host.Report(ATTEMPT)),
        (EXITED, host.ProveClean(ATTEMPT)),
        (CLEAN, host.Report(ATTEMPT)),
        (ledger_after(stop_now(kill_after_ms=50), ledger=STARTED), host.StopProgram(ATTEMPT, 50, "cancel")),
        (ledger_after(stop_now(kill_after_ms=50), ledger=CLAIMED), host.StopProgram(ATTEMPT, 50, "cancel")),
    ],
)
def test_a_new_launcher_takes_up_what_the_ledger_states(ledger: HostLedger, command: host.Command) -> None:
    again, commands = host.restarted(ledger, "boot1")
    assert again is ledger
    assert command in commands


FITS = {
    Phase.CLAIMING: (host.ClaimGranted, host.ClaimRefused),
    Phase.CLAIMED: (host.ProgramStarted, host.ProgramExited),
    Phase.STARTED: (host.ProgramExited,),
    Phase.EXITED: (host.ProvedClean,),
    Phase.CLEAN: (),
}


@pytest.mark.parametrize("ledger", PHASES)
@pytest.mark.parametrize(
    "event",
    [
        granted(),
        host.ClaimRefused(ATTEMPT),
        host.ProgramStarted(ATTEMPT),
        host.ProgramExited(ATTEMPT),
        host.ProvedClean(ATTEMPT),
    ],
)
def test_events_that_do_not_fit_a_phase_change_nothing(ledger: HostLedger, event: host.Event) -> None:
    again, commands = host.step(ledger, event, 0)
    if isinstance(event, FITS[ledger.records[ATTEMPT].phase]):
        assert again != ledger
    else:
        assert (again, commands) == (ledger, ())


def test_events_of_unknown_attempts_change_nothing() -> None:
    for event in (granted(NEWER), host.ProgramStarted(NEWER), host.ProvedClean(NEWER)):
        assert host.step(STARTED, event, 0) == (STARTED, ())


def test_nothing_starts_that_was_requested_to_stop() -> None:
    record = CLAIMED.records[ATTEMPT]
    assert record.job_id == JOB
    assert host.may_start(record, 999)
    assert not host.may_start(record, 1000)
    assert not host.may_start(replace(record, kill_at_ms=5000), 1)
