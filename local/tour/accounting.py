"""Step 7: the accounts. After all kills and faults, nothing is missing, no GPU is held, and each GPU-second is paid."""

import time
from typing import Final

from control.core.sealer import AuditVerification, verify_audit
from control.core.unit_of_work import UnitOfWorkFactory
from local.tour import spending
from local.tour.world import Document, World, seconds_of
from muster.db.engine import make_engine

CONTACT_WITHIN_S: Final = 30.0


def account(world: World) -> None:
    world.teller.stage(
        7,
        "Nothing was lost",
        "agents keep what they cannot send and count what they must drop; each change left its event and audit entry",
    )
    _telemetry(world)
    _events(world)
    _audit(world)
    _gpus(world)
    spending.spend(world)


def _telemetry(world: World) -> None:
    """Check one GPU of each host: a host's reports hold all of its GPUs."""
    first_of = {gpu["node_id"]: gpu["uuid"] for gpu in reversed(world.operator.gpus())}
    world.until(
        "every host's newest readings are young",
        lambda: [world.operator.latest(uuid) for uuid in first_of.values()],
        lambda found: all(time.time() - seconds_of(one["at"]) < CONTACT_WITHIN_S for one in found),
        seen=lambda found: ", ".join(str(one["at"]) for one in found),
        log=f"agent-{world.hosts[0].name}",
    )
    gaps = [gap for uuid in first_of.values() for gap in world.operator.history(uuid, metric="power_w")["gaps"]]
    world.require(
        "every host reports, and none had to drop a reading",
        f"{len(first_of)} hosts, {len(gaps)} gaps",
        f"agent-{world.hosts[0].name}",
        is_so=not gaps,
    )


def _events(world: World) -> None:
    positions = [event["position"] for event in world.events.since(0)]
    world.require(
        "the events are numbered without a gap",
        f"{positions[0]} to {positions[-1]}",
        "worker-control",
        is_so=positions == list(range(positions[0], positions[0] + len(positions))),
    )


def _audit(world: World) -> None:
    """Verify the chain as ``muster audit verify`` does: it reads the database itself."""
    engine = make_engine((world.state_dir / "database.url").read_text(encoding="utf-8"))
    try:
        units = UnitOfWorkFactory(engine)
        report = world.until(
            "the audit chain is whole",
            lambda: _verified(units),
            lambda found: found.ok,
            seen=str,
            log="worker-control",
        )
    finally:
        engine.dispose()
    world.teller.passed("the audit chain is whole", f"{report.entries} entries, each linked to the one before")


def _verified(units: UnitOfWorkFactory) -> AuditVerification:
    with units.read() as session:
        return verify_audit(session)


def _gpus(world: World) -> None:
    def assigned() -> list[Document]:
        return [gpu for gpu in map(world.operator.gpu, (one["uuid"] for one in world.operator.gpus())) if gpu["job"]]

    world.until(
        "no GPU is held",
        assigned,
        lambda found: not found,
        seen=lambda found: ", ".join(f"{gpu['uuid']} by {gpu['job']['job_id']}" for gpu in found),
        log="worker-control",
    )
    world.teller.passed("every GPU is free and proved clean", "no job holds one")
