"""The agent's burn-in loop: asks for orders, runs them, reports each until the server has it.

One batch at a time: an agent that asks runs nothing, so an order whose agent died is given again at the next request.
"""

import random
import threading
from collections.abc import Callable
from typing import Final

import structlog

from agents.burn_in.measuring import Measuring
from agents.burn_in.server import BurnInServer
from agents.probes.interface import ProbeError
from muster.client.transport import Problem, UnreachableError
from muster.domain.ids import GpuUuid
from muster.wire.burn_in import BURN_IN_PROTOCOL, MAX_GPUS, BurnInOrder, BurnInPoll, BurnInReport, Figures

RETRY_BASE_S: Final = 0.5
RETRY_CAP_S: Final = 30.0
AWAY_S: Final = 10.0
JITTER: Final = 0.1
_REPEATED: Final = frozenset({401, 403, 408, 425, 429})
_log = structlog.get_logger(__name__)


class BurnInWorker:
    def __init__(
        self,
        server: BurnInServer,
        measuring: Measuring,
        boot_id: str,
        rng: random.Random,
        turn_taking: "threading.Lock | None" = None,
    ) -> None:
        self._server = server
        self._measuring = measuring
        self._boot_id = boot_id
        self._rng = rng
        self._max_orders: int | None = None
        self._turn_taking = turn_taking or threading.Lock()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            stop.wait(self.turn(stop) * self._rng.uniform(1 - JITTER, 1 + JITTER))

    def turn(self, stop: threading.Event) -> float:
        """Ask once and run the orders, while no repair is in progress. Return the seconds until the next request."""
        if not self._turn_taking.acquire(timeout=1.0):
            return 0.0
        try:
            return self._turn(stop)
        finally:
            self._turn_taking.release()

    def _turn(self, stop: threading.Event) -> float:
        try:
            answer = self._server.poll(
                BurnInPoll(protocol=BURN_IN_PROTOCOL, boot_id=self._boot_id, max_orders=self._at_once())
            )
        except (ProbeError, UnreachableError, Problem) as fault:
            _log.debug("burn_in_orders_not_asked", fault=str(fault))
            return AWAY_S
        if not answer.orders:
            return answer.poll_again_s
        self._carry_out({GpuUuid(order.gpu_uuid): order for order in answer.orders}, stop)
        return 0.0

    def _at_once(self) -> int:
        """Return how many orders to take at once.

        One for real GPUs, so that an order's time begins when its run does.
        """
        if self._max_orders is None:
            self._max_orders = MAX_GPUS if self._measuring.probe.identify().is_simulated else 1
        return self._max_orders

    def _carry_out(self, orders: dict[GpuUuid, BurnInOrder], stop: threading.Event) -> None:
        _log.info("burn_in_began", num_gpus=len(orders))
        told: dict[GpuUuid, Figures | str] = {}
        deadlines = {uuid: order.deadline_s for uuid, order in orders.items()}
        operations = {uuid: order.operation for uuid, order in orders.items() if order.operation is not None}
        self._measuring.run(deadlines, stop, told.__setitem__, operations)
        if stop.is_set():
            return  # an interrupted measurement shows nothing about the GPU
        for uuid, found in told.items():
            self._report(orders[uuid], found, stop)

    def _report(self, order: BurnInOrder, found: Figures | str, stop: threading.Event) -> None:
        report = BurnInReport(
            protocol=BURN_IN_PROTOCOL,
            try_number=order.try_number,
            figures=found if isinstance(found, Figures) else None,
            could_not_run=found if isinstance(found, str) else None,
        )
        self._until_answered(order, lambda: self._server.report(order.burn_in_id, report).is_taken, stop)
        if isinstance(found, str):
            _log.warning("burn_in_could_not_run", gpu_uuid=order.gpu_uuid, burn_in_id=order.burn_in_id, why=found)
        else:
            _log.info("burn_in_reported", gpu_uuid=order.gpu_uuid, burn_in_id=order.burn_in_id, took_s=found.took_s)

    def _until_answered(self, order: BurnInOrder, send: Callable[[], bool], stop: threading.Event) -> None:
        num_tries = 0
        while not stop.is_set():
            try:
                is_taken = send()
            except UnreachableError as fault:
                why = str(fault)
            except Problem as problem:
                if problem.status < 500 and problem.status not in _REPEATED:
                    _log.error("burn_in_report_refused", burn_in_id=order.burn_in_id, fault=str(problem))
                    return
                why = str(problem)
            else:
                if not is_taken:
                    _log.warning("burn_in_report_not_taken", burn_in_id=order.burn_in_id)
                return
            if num_tries == 0:
                _log.warning("burn_in_report_waits", burn_in_id=order.burn_in_id, why=why)
            cap_s = min(RETRY_CAP_S, RETRY_BASE_S * 2 ** min(num_tries, 10))
            stop.wait(self._rng.uniform(0, cap_s))
            num_tries += 1
