"""Free time on hold counts by the kind of the hold."""

from control.health.evacuation import evacuate_once
from control.health.judge import SIGNALS, judge_once
from muster.db.models import Attempt
from muster.domain.principals import system_principal
from muster.domain.states import Cause
from tests.control.ledger.played_hour import PlayedHour
from tests.stored_signals import add_signal

JUDGE = system_principal("judge")


def test_gpus_that_an_interrupted_job_keeps_are_a_resume_hold(played: PlayedHour) -> None:
    played.at(10)
    played.start(shape={"gpus_per_node": 2}, restart={"max_restarts": 3})
    ((attempt_id, fence),) = played.attempts
    with played.units.read() as session:
        job_id = session.get_one(Attempt, attempt_id).job_id
    bad, good = played.fleet.attempts(job_id)[-1].hosts[0].gpus
    played.at(20)
    with played.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
        add_signal(unit, bad)
    while judge_once(played.units, JUDGE):
        pass
    assert evacuate_once(played.units, JUDGE) == 1
    record: dict[str, object] = {"launcher_exit_code": 0, "stop_reason": "evacuation"}
    played.host.report(attempt_id, fence, "exited", "cleaned", record=record)
    assert played.fleet.attempts(job_id)[-1].attempt.cause is Cause.EVACUATED
    played.at(30)
    played.fleet.cancel(job_id)
    played.fleet.cycle()
    played.at(66)
    played.host.beat()
    played.keep()
    holds = [entry for entry in played.entries() if entry.account == "hold"]
    assert {(entry.cause, *entry.evidence) for entry in holds} == {("resume", job_id)}
    assert {uuid: num_ms for entry in holds for uuid, num_ms in zip(entry.gpus, entry.gpu_ms, strict=True)} == {
        bad: 10 * 60_000,  # a person has set it to HEALTHY meanwhile
        good: 10 * 60_000,
    }
    assert sum(played.seconds().values()) == 7200
