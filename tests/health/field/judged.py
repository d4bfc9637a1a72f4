"""Signals of a situation of the field's rules, judged and merged as by the judge, under the given policy."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count

from health.detectors.registry import GpuMemory, judge_sample, judge_signal
from health.detectors.repeats.repair_repeats import repairs_of
from health.evidence.index import EvidenceIndex
from health.evidence.merge import Place, merge
from muster.domain.evidence.findings import EventKind, Evidence, Finding, GpuSample, GpuSignal, Severity, Source
from muster.domain.ids import EvidenceId, GpuUuid
from muster.domain.policy.health import HealthPolicy
from tests.health.case_factory import DAY, MINUTE, NODE, NOW_MS, SECOND, sample, signal

Judged = Callable[[HealthPolicy], Mapping[str, Evidence]]
"""A situation: by a policy, fault key → the evidence that is left once all was noted."""
STATE, RATES, HOST = EventKind.GPU_STATE, EventKind.GPU_RATES, EventKind.HOST_STATE
PORT, PORT_RATES = EventKind.PORT_STATE, EventKind.PORT_RATES
INFO, WARNING, DEGRADED, CONDEMNING = Severity
RDMA = "mlx5_0/1"
CARD = "mlx5_core 0000:3b:00.0: Port module event: module 1, Cable error, Power budget exceeded"


@dataclass(frozen=True)
class Rule:
    """``at`` finds ``fault``; ``short_of`` it does not. ``reported_by``: the detector, where another's fault it is."""

    fault: str
    severity: Severity
    source: str
    at: Judged
    short_of: Judged
    reported_by: str = ""

    @property
    def detector(self) -> str:
        return self.reported_by or self.fault.partition(":")[0]


def merged(
    findings: Iterable[Finding], policy: HealthPolicy, elsewhere: Collection[Evidence] = ()
) -> dict[str, Evidence]:
    """Return the evidence once all findings were merged as they happened, repetitions included.

    ``elsewhere``: evidence of the node's other GPUs.
    """
    known = EvidenceIndex()
    numbers = count()
    for each in findings:
        list(
            merge(
                each, Place(known, lambda: elsewhere), policy, each.onset_ms, lambda: EvidenceId(f"ev_{next(numbers)}")
            )
        )
    return {each.fault_key: each for each in known.values()}


def reported(*signals: GpuSignal, elsewhere: Iterable[GpuSignal] = ()) -> Judged:
    def judged(policy: HealthPolicy) -> dict[str, Evidence]:
        others = merged((found for each in elsewhere for found in judge_signal(each, policy)), policy)
        return merged((found for each in signals for found in judge_signal(each, policy)), policy, others.values())

    return judged


def state(text: str = "", **values: float) -> Judged:
    return reported(replace(signal(STATE, text=text), values=values))


def rates(window_s: float = 60.0, **values: float) -> Judged:
    return reported(replace(signal(RATES), values={"window_s": window_s, **values}))


def of_node(kind: EventKind, text: str = "", **values: float) -> Judged:
    return reported(replace(signal(kind, gpu=None, source=Source.HOST, text=text), values=values))


def node_reports(name: str, value: float) -> Judged:
    return reported(replace(signal(HOST, gpu=None, source=Source.HOST), values={name: value}))


def port_rates(window_s: float = 60.0, **values: float) -> Judged:
    return of_node(PORT_RATES, RDMA, window_s=window_s, **values)


def xids(code: int, gap_ms: int, times: int, text: str = "", *, alongside: bool = False) -> Judged:
    """``alongside``: another GPU of the node reports it too."""
    one = signal(code=code, text=text, source=Source.KERNEL_LOG)
    again = [replace(one, signal_id=f"{at}", at_ms=NOW_MS + at * gap_ms) for at in range(times)]
    return reported(*again, elsewhere=[replace(one, signal_id="beside", gpu_uuid=GpuUuid("GPU-beside"))] * alongside)


def one_after_the_other(*codes_at_ms: tuple[int, int]) -> Judged:
    """XIDs of one GPU, each so long after ``NOW_MS``."""
    return reported(
        *(
            replace(signal(code=code, source=Source.KERNEL_LOG), signal_id=f"{code}", at_ms=NOW_MS + after_ms)
            for code, after_ms in codes_at_ms
        )
    )


def sampled(*samples: GpuSample, model: str = "") -> Judged:
    def judged(policy: HealthPolicy) -> dict[str, Evidence]:
        memory, found = GpuMemory(NODE, model=model), list[Finding]()
        for each in samples:
            memory, findings = judge_sample(memory, each, policy, each.at_ms)
            found += findings
        return merged(found, policy)

    return judged


def rise(name: str, before: float, after: float) -> Judged:
    return sampled(sample(NOW_MS, **{name: before}), sample(NOW_MS + 10 * SECOND, **{name: after}))


def clocks(bit: int, times: int) -> Judged:
    held = [bit] * times + [0] * (10 - times)
    return sampled(
        *(sample(NOW_MS + at * 10 * SECOND, clock_event_reasons=float(is_set)) for at, is_set in enumerate(held))
    )


def flaps(times: int, down_s: float) -> Judged:
    return _each_minute(PORT, times, {"state": 4.0, "was_down_s": down_s})


def bad_link(times: int) -> Judged:
    return _each_minute(PORT_RATES, times, {"link_error_recovery": 6.0, "window_s": 60.0})


def _each_minute(kind: EventKind, times: int, values: Mapping[str, float]) -> Judged:
    one = replace(signal(kind, gpu=None, source=Source.HOST, text=RDMA), values=values)
    return reported(*(replace(one, signal_id=f"{at}", at_ms=NOW_MS + at * MINUTE) for at in range(times)))


def card_states(text: str) -> Judged:
    return reported(signal(EventKind.NIC_DRIVER, gpu=None, source=Source.KERNEL_LOG, text=text))


def cards(times: int, gap_ms: int) -> Judged:
    return reported(
        *(
            signal(EventKind.NIC_DRIVER, gpu=None, at_ms=NOW_MS + at * gap_ms, source=Source.KERNEL_LOG, text=CARD)
            for at in range(times)
        )
    )


def retired(first: float, second: float, gap_ms: int) -> Judged:
    pages = ((NOW_MS, first), (NOW_MS + gap_ms, second))
    return reported(*(signal(STATE, at_ms=at_ms, retired_pages_double_bit=each) for at_ms, each in pages))


def repairs(times: int) -> Judged:
    at_ms = [NOW_MS - at * DAY for at in range(times)]
    return lambda policy: merged(repairs_of(NODE, at_ms, policy, NOW_MS), policy)
