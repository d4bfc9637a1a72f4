"""A scan for programs: one object, metrics by name, null where unsupported or failed."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from agents.scan.scan import ScannedGpu, ScannedHost, ScanReport
from agents.scan.verdict import ScanFinding, Waits
from muster.domain.gpu.metrics import METRICS, value_of


def as_document(report: ScanReport) -> dict[str, Any]:
    return {
        "is_healthy": report.is_healthy,
        "has_warnings": report.has_warnings,
        "is_simulated": report.inventory.is_simulated,
        "at_ms": report.at_ms,
        "listened_s": report.listened_s,
        "nvml": _nvml_document(report),
        "driver_version": report.inventory.driver_version,
        "cuda_version": report.inventory.cuda_version,
        "gpus": [_gpu_document(gpu) for gpu in report.gpus],
        "host": _host_document(report.host),
        "nameless": [asdict(nameless) for nameless in report.inventory.nameless],
        "not_judged": dict(report.not_judged),
    }


def finding_document(found: ScanFinding) -> dict[str, Any]:
    return {
        "detector": found.detector,
        "severity": found.severity.name,
        "fault": found.fault_key,
        "gpu_uuid": found.gpu_uuid,
        "pci": found.pci,
        "onset_ms": found.onset_ms,
        "at": _when(found.onset_ms),
        "summary": found.summary,
        "sources": [source.value for source in found.sources],
        "action": None if found.action is None else found.action.value,
        "waits": None if found.waits is None else _wait_document(found.waits),
    }


def _wait_document(waits: Waits) -> dict[str, Any]:
    until = None if waits.until_ms is None else _when(waits.until_ms)
    return {"why": waits.why, "until_ms": waits.until_ms, "until": until}


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _nvml_document(report: ScanReport) -> dict[str, Any]:
    if report.no_driver is None:
        return {"is_available": True}
    return {
        "is_available": False,
        "fault": str(report.no_driver),
        "suggestion": report.no_driver.suggestion,
    }


def _host_document(host: ScannedHost | None) -> dict[str, Any] | None:
    if host is None:
        return None
    ports = {name: dict(values) for name, values in host.ports.items()}
    findings = [finding_document(each) for each in host.findings]
    return {"values": dict(host.state), "words": dict(host.words), "ports": ports, "findings": findings}


def _slow_document(gpu: ScannedGpu) -> dict[str, Any] | None:
    if gpu.inspection is None:
        return None
    return {
        "values": dict(gpu.slow),
        "words": dict(gpu.inspection.words),
        "counters": {**gpu.inspection.counters, **gpu.inspection.alongside},
        "links": {str(link): dict(counts) for link, counts in gpu.inspection.link_counters.items()},
        "unsupported": sorted(gpu.inspection.unsupported),
        "faults": dict(gpu.inspection.faults),
    }


def _gpu_document(gpu: ScannedGpu) -> dict[str, Any]:
    identity = asdict(gpu.identity) if gpu.identity is not None else None
    if identity is not None:
        identity["unsupported"] = sorted(identity["unsupported"])
    return {
        "uuid": gpu.check.gpu_uuid,
        "index": gpu.check.index,
        "state": gpu.state,
        "findings": [finding_document(each) for each in gpu.findings],
        "xids": gpu.xids,
        "values": {metric.name: value_of(gpu.check.values, metric.name) for metric in METRICS},
        "unsupported": sorted(gpu.check.unsupported),
        "faults": dict(gpu.check.faults),
        "slow": _slow_document(gpu),
        "identity": identity,
    }
