"""GPUs of one gang compared with each other, once a minute: a GPU apart from its peers becomes evidence.

Earlier rounds are kept in memory alone. A process that starts again observes for a window's length before it reports,
and two processes at the same time find the same fault, which is one evidence.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import numpy as np
import structlog

from control.core.unit_of_work import UnitOfWorkFactory, declare_action, retrying
from control.health.judge import judge_findings
from control.policy.policies import active_policy
from control.telemetry.codec import CodecError
from control.telemetry.node_readings import unpack_readings
from health.cohort.peers import COMPARED_METRICS, Memory, Round, judge_round
from muster.db.queries.peers import WorkingNode, working_nodes
from muster.domain.evidence.findings import Finding
from muster.domain.gpu.metrics import INDEX
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.principals import Principal
from muster.domain.times import to_ms

JUDGE: Final = declare_action("judge.peers")
FRESH: Final = timedelta(seconds=60)
"""Maximum age of readings in a round: peers are compared at one time."""
FINDINGS_MAX: Final = 200
"""Maximum number of findings in one transaction."""
_COMPARED_POSITIONS: Final = [INDEX[metric.name] for metric in COMPARED_METRICS]
_log = structlog.get_logger(__name__)


class PeerRounds:
    """Memory of one process over its rounds."""

    def __init__(self, units: UnitOfWorkFactory, principal: Principal) -> None:
        self._units = units
        self._principal = principal
        self._memory = Memory()
        self._gangs: dict[tuple[str, str], int] = {}

    def once(self) -> int:
        """Run one round. Return how many findings it reported; none while the policy has it off."""
        now = self._units.clock()
        with self._units.read() as session:
            policy = active_policy(session).health
            nodes = working_nodes(session, now - FRESH) if policy.peers.is_on and policy.peers.mode != "off" else []
        memory, findings = judge_round(self._memory, self._round(nodes, to_ms(now)), policy)
        for first in range(0, len(findings), FINDINGS_MAX):
            retrying(partial(self._report, findings[first : first + FINDINGS_MAX]))
        self._memory = memory
        return len(findings)

    def _report(self, findings: Sequence[Finding]) -> None:
        with self._units.begin(self._principal, JUDGE, quiet=True) as unit:
            judge_findings(unit, findings)

    def _round(self, nodes: list[WorkingNode], at_ms: int) -> Round:
        gpus: list[GpuUuid] = []
        node_ids: list[NodeId] = []
        names: list[tuple[str, str]] = []
        values = []
        for node in nodes:
            try:
                known, matrix, lost = unpack_readings(node.readings)
            except CodecError as error:
                _log.error("gpu_readings_unreadable", node_id=node.node_id, fault=str(error))
                continue
            row_of = {name: row for row, name in enumerate(known) if not lost[row]}
            for uuid, attempt_id, cohort in zip(node.gpu_uuids, node.attempt_ids, node.cohort_keys, strict=True):
                if uuid in row_of and matrix.shape[1] > max(_COMPARED_POSITIONS):
                    gpus.append(uuid)
                    node_ids.append(node.node_id)
                    names.append((attempt_id, cohort))
                    values.append(matrix[row_of[uuid], _COMPARED_POSITIONS])
        self._gangs = _numbered(names, self._gangs)
        gangs = np.array([self._gangs[name] for name in names], dtype=np.int64)
        return Round(at_ms, gpus, node_ids, gangs, np.array(values).reshape(len(gpus), len(COMPARED_METRICS)))


def _numbered(names: list[tuple[str, str]], known: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Return a number for each gang: the same as long as it runs, and none that another had in the round before."""
    found = {name: known[name] for name in dict.fromkeys(names) if name in known}
    following = max(known.values(), default=-1) + 1
    for name in dict.fromkeys(names):
        if name not in found:
            found[name] = following
            following += 1
    return found
