"""A dcgm-exporter: its readings fill gaps of NVML's, and never replace NVML's own.

Off unless it is named. Where it does not answer, is slow, or sends no valid scrape, NVML alone reports the GPUs; that
is logged once until it changes. A change of its XID gauge is an XID (``last_xid``).
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Final

import httpx
import structlog

from agents.dcgm.last_xid import LastXids
from agents.dcgm.metrics import DcgmGpu, merged, parse_metrics
from agents.probes.deadline import Callers, NoAnswerError
from agents.probes.interface import ComputeDevice, GpuCheck, GpuInspection, HostInventory, Probe, ProbeEvent
from muster.domain.gpu.metrics import FROM_DCGM_ALONE, METRICS
from muster.domain.gpu.signal_groups import SignalGroup
from muster.domain.ids import GpuUuid

DEADLINE_S: Final = 2.0
BYTES_MAX: Final = 8 << 20
"""The limit of an answer. A host of 72 GPUs with every field of the exporter's list has 1 MiB."""
_log = structlog.get_logger(__name__)


class ExporterError(Exception):
    """There is no scrape, with the reason."""


class Exporter:
    """The exporter. ``url``: of its metrics, such as http://127.0.0.1:9400/metrics.

    ``every_s``: for so long a scrape is used again.
    """

    def __init__(self, url: str, *, deadline_s: float = DEADLINE_S, every_s: float = 0.0) -> None:
        self._url = url
        self._deadline_s = deadline_s
        self._every_s = every_s
        self._newest: Mapping[str, DcgmGpu] = {}
        self._http = httpx.Client(timeout=deadline_s, trust_env=False)
        self._callers = Callers()
        self._fault: str | None = None
        self._answered_s: float | None = None

    @property
    def age_s(self) -> float | None:
        """Return the seconds since its last valid scrape; None before the first."""
        return None if self._answered_s is None else time.monotonic() - self._answered_s

    def gpus(self) -> Mapping[str, DcgmGpu]:
        """Return UUID → the exporter's readings now; empty where there are none."""
        if self._newest and self.age_s is not None and self.age_s < self._every_s:
            return self._newest
        try:
            self._newest = found = self.scrape()
        except ExporterError as error:
            self._newest = {}
            if self._fault is None:
                _log.warning("dcgm_exporter_says_nothing", url=self._url, fault=str(error))
            self._fault = str(error)
            return {}
        if self._fault is not None:
            _log.info("dcgm_exporter_answers_again", url=self._url, num_gpus=len(found))
        self._fault = None
        self._answered_s = time.monotonic()
        return found

    def scrape(self) -> Mapping[str, DcgmGpu]:
        """Return a scrape.

        Raises ExporterError. An exporter that hangs is not asked again until that request has ended.
        """
        try:
            text = self._callers.within(self._deadline_s, "exporter", self._fetch)
        except NoAnswerError as error:
            raise ExporterError(str(error)) from None
        except httpx.HTTPError as error:
            raise ExporterError(f"no answer: {str(error) or type(error).__name__}") from None
        gpus = parse_metrics(text.splitlines()).gpus
        if not gpus:
            raise ExporterError("its answer holds no sample of any GPU")
        return {gpu.uuid: gpu for gpu in gpus}

    def close(self) -> None:
        """Close the client, unless a request hangs: that is left to its thread, which does not keep the process."""
        if self._callers.is_idle:
            self._http.close()

    def _fetch(self) -> str:
        content = bytearray()
        with self._http.stream("GET", self._url) as answer:
            if answer.status_code != httpx.codes.OK:
                raise ExporterError(f"it answers {answer.status_code}")
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > BYTES_MAX:
                    raise ExporterError(f"its answer is larger than {BYTES_MAX >> 20} MiB")
        return content.decode("utf-8", "replace")


class ProbeWithDcgm:
    """A probe whose checks are filled by an exporter, and whose events include the exporter's XIDs."""

    def __init__(self, probe: Probe, exporter: Exporter) -> None:
        self._probe = probe
        self._exporter = exporter
        self._last_xids = LastXids()
        self._scraping = Lock()
        self._events: SimpleQueue[ProbeEvent] = SimpleQueue()

    def identify(self) -> HostInventory:
        return self._probe.identify()

    def check(self, now_ms: int) -> tuple[GpuCheck, ...]:
        checks = self._probe.check(now_ms)
        with self._scraping:  # burn-ins and repairs check too: an older scrape must not follow a newer one
            exported = self._exporter.gpus()
            for event in self._last_xids.changes(exported, [check.gpu_uuid for check in checks], now_ms):
                self._events.put(event)
        return tuple(map(partial(filled, exported), checks))

    def inspect(self, now_ms: int) -> tuple[GpuInspection, ...]:
        return self._probe.inspect(now_ms)

    def events(self, timeout_s: float) -> tuple[ProbeEvent, ...]:
        return (*self._probe.events(timeout_s), *self._new_events())

    def take_change(self) -> bool:
        return self._probe.take_change()

    def ages_s(self) -> Mapping[SignalGroup, float]:
        age_s = self._exporter.age_s
        return {**self._probe.ages_s(), **({} if age_s is None else {SignalGroup.DCGM: age_s})}

    def compute_device(self, gpu_uuid: GpuUuid) -> ComputeDevice:
        return self._probe.compute_device(gpu_uuid)

    def close(self) -> None:
        self._exporter.close()
        self._probe.close()

    def _new_events(self) -> Iterator[ProbeEvent]:
        while True:
            try:
                yield self._events.get_nowait()
            except Empty:
                return


def filled(exported: Mapping[str, DcgmGpu], check: GpuCheck) -> GpuCheck:
    """Return the check with the exporter's readings where NVML has none on this GPU, or on any (``FROM_DCGM_ALONE``).

    Nothing else is filled: for a GPU that DCGM cannot reach, and for a reading of NVML's that failed once, the exporter
    may still show an old value, and a counter that goes back and forth looks like rising errors.
    """
    gpu = exported.get(check.gpu_uuid)
    if gpu is None or not _answers(check):
        return check
    told = zip(METRICS, gpu.row(), strict=True)
    wanted = check.unsupported | FROM_DCGM_ALONE
    offered = tuple(value if metric.name in wanted else None for metric, value in told)
    values = merged(check.values, offered)
    pairs = zip(METRICS, check.values, values, strict=True)
    is_filled = frozenset(metric.name for metric, before, now in pairs if before is None and now is not None)
    return replace(check, values=values, unsupported=check.unsupported - is_filled, from_dcgm=is_filled)


def _answers(check: GpuCheck) -> bool:
    return not check.is_lost and not check.is_late
