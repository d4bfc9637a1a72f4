"""Timelines in which places are given, taken back, changed and become free. In the end all GPUs are free again."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from sqlalchemy import select, update

from control.fleet import maintenance
from control.health.evacuation import evacuate_once
from control.health.judge import SIGNALS
from control.hosts import drains
from control.hosts.maintenance_evacuation import evacuate_for_maintenance_once
from control.placement import resizing
from muster.db.models import Gpu
from muster.domain.errors import ConflictError
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import ContactPolicy, DispatchPolicy, ElasticPolicy, Policy
from muster.domain.policy.tiers import ReclaimPolicy, TierPolicy
from muster.domain.principals import system_principal
from muster.domain.states import JobState, Standing
from muster.wire.host import HOST_CAPABILITIES
from tests.control.deaths.play import Play
from tests.control.reclaim.stage import DONE, LEFT
from tests.fleet_factory import OPERATOR

POLICY: Final = Policy(
    tiers={
        "reserved": TierPolicy(priority=300),
        "on_demand": TierPolicy(priority=200),
        "spot": TierPolicy(priority=100, notice_s=600.0, min_run_s=10.0),
    },
    reclaim=ReclaimPolicy(cap_fraction=1.0),
    elastic=ElasticPolicy(grow_after_s=10.0),
)
CHECKS: Final = POLICY.model_copy(update={"dispatch": DispatchPolicy(preflight_from_nodes=1)})
SHORT_LEASES: Final = POLICY.model_copy(
    update={
        "contact": ContactPolicy(
            heartbeat_s=2.0,
            silent_after_s=6.0,
            lost_after_s=12.0,
            agent_lease_s=15.0,
            server_lease_extra_s=5.0,
            kill_grace_s=2.0,
            lease_margin_s=2.0,
            no_expiry_after_start_s=5.0,
        )
    }
)
BOTH: Final = {"gpus_per_node": 2}
WIDE: Final = {"nodes": 2, "gpus_per_node": 2}
ELASTIC: Final = {"min_nodes": 1, "nodes": 1, "max_nodes": 3, "gpus_per_node": 2}
RESIZED: Final = {**LEFT, "stop_reason": "resize"}
MOVED: Final = {**LEFT, "stop_reason": "maintenance"}
EVACUATED: Final = {**LEFT, "stop_reason": "evacuation"}
SPENT: Final = {**LEFT, "stop_reason": "budget"}
JUDGE: Final = system_principal("judge")
RECONCILER: Final = system_principal("reconciler")
HOUR_S: Final = 3600


def reclaim(play: Play) -> None:
    """A victim is given notice, gets it, leaves; its beneficiary gets the place, and the victim continues after it."""
    victim = play.submits("victim", "spot", shape=BOTH)
    _start(play)
    play.pass_time(15)
    beneficiary = play.submits("beneficiary", "reserved", shape=BOTH)
    play.cycle()
    play.cycle()
    (notice,) = play.stage.reclaims()
    assert play.stage.assigned_for(beneficiary)
    play.beats()
    assert set(play.stops) == {"reclaim of victim"}
    assert play.stage.refreshed(notice.id).delivered_at is not None
    play.leaves(victim, LEFT)
    play.reconcile()
    _start(play)
    assert beneficiary in play.stage.running
    play.leaves(beneficiary, DONE)
    _start(play)
    play.leaves(victim, DONE)
    play.cycle()


def withdrawal(play: Play) -> None:
    """The beneficiary waits no more: its hold ends, and a victim that was not notified yet continues."""
    victim = play.submits("victim", "spot", shape=BOTH)
    _start(play)
    play.pass_time(15)
    beneficiary = play.submits("beneficiary", "reserved", shape=BOTH)
    play.cycle()
    play.ask(lambda: play.stage.cancel(beneficiary))
    play.cycle()
    play.beats()
    assert play.stops == [], "a withdrawn notice stops no attempt"
    play.leaves(victim, DONE)
    play.cycle()


def resize(play: Play) -> None:
    """An elastic job is made smaller by its tenant, grows to what is idle, and is cancelled as it leaves for that."""
    for name in ("beta", "gamma"):
        play.stage.add_host(name)
    job_id = play.submits("elastic", "on_demand", shape=ELASTIC)
    _start(play)
    assert len(play.stage.running[job_id]) == 3
    play.ask(lambda: _resize(play, 1))
    assert len(play.stage.assigned_for(job_id)) == 2
    play.beats()
    play.leaves(job_id, RESIZED)
    _start(play)
    assert len(play.stage.running[job_id]) == 1
    play.ask(lambda: _resize(play, 2))
    play.pass_time(15)
    play.cycle()
    assert len(play.stage.assigned_for(job_id)) == 4
    play.beats()
    play.leaves(job_id, RESIZED)
    _start(play)
    assert len(play.stage.running[job_id]) == 2
    play.ask(lambda: _resize(play, 3))
    play.pass_time(15)
    play.cycle()
    assert len(play.stage.assigned_for(job_id)) == 6
    play.ask(lambda: play.stage.cancel(job_id))
    play.beats()
    play.leaves(job_id, {**LEFT, "stop_reason": "cancel"})
    play.cycle()


def swap(play: Play) -> None:
    """A host is drained under a gang, then a GPU is taken out: twice it continues with the hosts that are good."""
    for name in ("beta", "gamma", "delta"):
        play.stage.add_host(name)
    job_id = play.submits("gang", "on_demand", shape=WIDE)
    _start(play)
    (first, _), (kept, _) = play.stage.running[job_id]
    with play.stage.units.read() as session:
        uuids = session.scalars(select(Gpu.uuid).where(Gpu.node_id == kept.node_id).order_by(Gpu.uuid)).all()
    play.ask(lambda: _drain(play, first.node_id))
    play.beats()
    play.leaves(job_id, MOVED)
    _start(play)
    assert kept.node_id in play.stage.nodes_of(job_id)
    assert first.node_id not in play.stage.nodes_of(job_id)
    _take_out(play, uuids[0])
    play.ask(lambda: evacuate_once(play.stage.units, JUDGE))
    play.beats()
    play.leaves(job_id, EVACUATED)
    _start(play)
    assert kept.node_id not in play.stage.nodes_of(job_id)
    play.leaves(job_id, DONE)
    play.cycle()


def clearing(play: Play) -> None:
    """Planned work on a host: a job that would still run there is asked to leave in time, and continues elsewhere."""
    play.stage.add_host("beta")
    job_id = play.submits("moved", "on_demand", shape=BOTH)
    _start(play)
    (before,) = play.stage.nodes_of(job_id)
    _declare(play, before, in_s=HOUR_S)
    play.pass_time(60)
    play.ask(lambda: evacuate_for_maintenance_once(play.stage.units, RECONCILER))
    play.beats()
    assert set(play.stops) == {"maintenance of moved"}
    play.leaves(job_id, MOVED)
    _start(play)
    assert play.stage.nodes_of(job_id) != {before}
    play.leaves(job_id, DONE)
    play.cycle()


def check(play: Play) -> None:
    """Jobs are checked by a host before they take any GPU, one after the other."""
    play.stage.set_policy(CHECKS)
    play.capabilities = HOST_CAPABILITIES
    play.beats()
    job_ids = [play.submits(name, "on_demand") for name in ("seen", "seen-later")]
    for _ in range(3):
        play.cycle()
        play.beats()
    assert play.stage.running.keys() == set(job_ids)
    for job_id in job_ids:
        play.leaves(job_id, DONE)
    play.cycle()


def budget(play: Play) -> None:
    """What a job may spend is spent."""
    job_id = play.submits("spender", "on_demand", shape=BOTH, budget_gpu_hours=2)
    _start(play)
    play.stage.clock.advance(HOUR_S)
    play.beats()
    play.reconcile()
    play.beats()
    assert set(play.stops) == {"budget of spender"}
    play.leaves(job_id, SPENT)
    assert play.stage.job(job_id).state is JobState.FAILED
    play.cycle()


def silence(play: Play) -> None:
    """A host is lost and its attempt ends by its lease; the rest of its GPUs becomes free once it is proved clean."""
    play.stage.add_host("beta")
    play.stage.set_policy(SHORT_LEASES)
    job_id = play.submits("lonely", "on_demand", shape=BOTH, on_node_loss="fenced")
    _start(play)
    ((lost, item),) = play.stage.running.pop(job_id)
    play.stage.hosts.remove(lost)
    for _ in range(8):
        play.stage.clock.advance(5)
        play.beats()
        play.reconcile()
    _start(play)
    assert job_id in play.stage.running
    play.stage.hosts.append(lost)
    play.beats()
    play.ask(lambda: lost.report(item.attempt_id, item.fence, "exited", "cleaned", record={"launcher_signal": 9}))
    play.leaves(job_id, DONE)
    play.cycle()


def _start(play: Play) -> None:
    """A pending job is placed, its hosts claim it and start it; time passes before they do and after."""
    play.reconcile()
    play.cycle()
    play.reconcile()
    play.beats()
    play.reconcile()


def _resize(play: Play, nodes: int) -> None:
    with play.stage.units.begin(play.stage.fleet.tenant, resizing.RESIZE) as unit:
        resizing.resize(unit, play.names["elastic"], nodes)


def _drain(play: Play, node_id: str) -> None:
    """A person asks again; the answer is that it is drained already where the first answer was lost."""
    with suppress(ConflictError), play.stage.units.begin(OPERATOR, drains.DRAIN) as unit:
        drains.drain(unit, node_id, reason="new fans", until=unit.now + timedelta(days=1))


def _declare(play: Play, node_id: str, *, in_s: float) -> None:
    with play.stage.units.begin(OPERATOR, maintenance.DECLARE) as unit:
        starts_at = unit.now + timedelta(seconds=in_s)
        until = starts_at + timedelta(hours=1)
        maintenance.declare(unit, node_id, reason="optics", until=until, starts_at=starts_at, evacuate_lead_s=in_s)


def _take_out(play: Play, uuid: GpuUuid) -> None:
    with play.stage.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
        unit.session.execute(update(Gpu).where(Gpu.uuid == uuid).values(standing=Standing.QUARANTINED))


Timeline = Callable[[Play], None]
DIES_IN: Final[dict[Timeline, tuple[str, ...]]] = {
    reclaim: (
        "reclaim.notify", "placement.place", "placement.note_waiting", "host.heartbeat", "host.claim", "host.report",
        "reconcile.attempt", "reconcile.job",
    ),
    withdrawal: ("reclaim.lapse", "reclaim.withdraw", "job.cancel"),
    resize: ("job.resize", "elastic.grow", "elastic.let_go"),
    swap: ("node.drain", "judge.evacuate"),
    clearing: ("node.clear",),
    check: ("preflight.request", "preflight.note_waiting"),
    budget: ("budget.stop",),
    silence: ("reconcile.contact", "api.heartbeat"),
}  # fmt: skip
"""Timeline → its units of work at which it is interrupted. A new unit by which a place may change needs its row."""
