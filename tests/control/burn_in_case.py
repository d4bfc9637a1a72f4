"""A host of UNPROVEN GPUs and its agent's side of the burn-in protocol, without HTTP between."""

from dataclasses import dataclass
from typing import Any

import msgspec

from control.core.paging import Part
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory as fleet
from control.health.burn_ins import hosts as agents
from control.health.burn_ins import orders, verdicts
from control.health.burn_ins.read import READ, BurnInFilter, BurnInRecord, list_burn_ins
from control.health.judge import judge_once
from control.hosts import protocol
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import Gpu
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.principals import Principal, Role, system_principal
from muster.domain.states import Standing
from muster.wire.burn_in import (
    BURN_IN_PROTOCOL,
    BurnInOrder,
    BurnInPoll,
    BurnInPollAnswer,
    BurnInReport,
    ExactSum,
    Figures,
)
from muster.wire.host import PROTOCOL_VERSION, HeartbeatRequest
from tests.fleet_factory import OPERATOR

RIGHT = "a" * 64
OTHER = "b" * 64
KEEPER = system_principal("burn-in")
JUDGE = system_principal("judge")


def figures(**changes: Any) -> Figures:
    """Of a simulated GPU that computes right."""
    plain = Figures(
        model="NVIDIA H100",
        driver="580-simulated",
        library="torch 2 on a CPU",
        partial_sums=(ExactSum(name="bf16 rows 1/8", golden=-42, measured=-42),),
        bands={"fp32 2^0": RIGHT},
        counter_deltas={"ecc_uncorrected_volatile": 0.0, "nvlink_replays": None},
        rates={"gemm_bf16_tflops": 700.0},
        is_simulated=True,
    )
    return msgspec.structs.replace(plain, **changes)


WRONG_SUM = (ExactSum(name="bf16 rows 1/8", golden=-42, measured=-41),)


@dataclass
class Host:
    """``seq``: of its heartbeats."""

    units: UnitOfWorkFactory
    node_id: NodeId
    gpus: tuple[GpuUuid, ...]
    seq: int = 0

    @property
    def principal(self) -> Principal:
        return Principal(name=f"node:{self.node_id}", role=Role.NODE, node_id=self.node_id)

    def ask(self, max_orders: int = 72) -> BurnInPollAnswer:
        request = BurnInPoll(protocol=BURN_IN_PROTOCOL, boot_id="boot-1", max_orders=max_orders)
        with self.units.begin(self.principal, agents.POLL) as unit:
            return agents.poll(unit, request)

    def report(self, order: BurnInOrder, found: Figures | str) -> bool:
        said = BurnInReport(
            protocol=BURN_IN_PROTOCOL,
            try_number=order.try_number,
            figures=found if isinstance(found, Figures) else None,
            could_not_run=found if isinstance(found, str) else None,
        )
        with self.units.begin(self.principal, agents.REPORT) as unit:
            return agents.report(unit, order.burn_in_id, said).is_taken

    def burn_in(self, found: Figures | str) -> None:
        """Every order that waits, with the same outcome."""
        for order in self.ask().orders:
            assert self.report(order, found)

    def beat(self) -> None:
        """Its heartbeat, so that it is LIVE."""
        self.seq += 1
        request = HeartbeatRequest(protocol=PROTOCOL_VERSION, boot_id="boot-1", seq=self.seq)
        with self.units.begin(self.principal, protocol.HEARTBEAT, quiet=True) as unit:
            protocol.heartbeat(unit, request)


def enrol(units: UnitOfWorkFactory, name: str = "alpha", *, num_gpus: int = 1, is_simulated: bool = True) -> Host:
    inventory = [
        fleet.GpuInventory(
            uuid=GpuUuid(f"GPU-{name}-{index}"),
            slot_index=index,
            model="NVIDIA H100",
            memory_bytes=80 << 30,
            compute_capability="9.0",
            driver_version="580",
            is_simulated=is_simulated,
        )
        for index in range(num_gpus)
    ]
    with units.begin(OPERATOR, fleet.ENROL) as unit:
        node_id = fleet.enrol_node(unit, name, inventory, address="127.0.0.1", is_simulated=is_simulated)
    return Host(units, node_id, tuple(gpu.uuid for gpu in inventory))


def order_intake(units: UnitOfWorkFactory) -> int:
    return orders.order_intake_once(units, KEEPER)


def order(units: UnitOfWorkFactory, gpu: GpuUuid, reason: str = "weekly") -> BurnInRecord:
    with units.begin(OPERATOR, orders.ORDER) as unit:
        return orders.order(unit, gpu, reason=reason)


def judge(units: UnitOfWorkFactory) -> int:
    return verdicts.judge_burn_ins_once(units, KEEPER)


def judge_time(units: UnitOfWorkFactory) -> None:
    judge_once(units, JUDGE)


def standing(units: UnitOfWorkFactory, gpu: GpuUuid) -> Standing:
    with units.read() as session:
        return session.get_one(Gpu, gpu).standing


def newest(units: UnitOfWorkFactory, gpu: GpuUuid) -> BurnInRecord:
    with units.begin(OPERATOR, READ) as unit:
        return list_burn_ins(unit, BurnInFilter(gpu_uuid=gpu), Part(1))[0]


def store(units: UnitOfWorkFactory, **health: Any) -> Policy:
    """The default policy with other numbers in its health part."""
    document = DEFAULT_POLICY.model_dump(mode="json")
    for part, numbers in health.items():
        document["health"][part] |= numbers
    policy = Policy.model_validate(document, strict=False)
    with units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, policy, reason="test")
    return policy
