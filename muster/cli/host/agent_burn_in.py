"""``muster agent burn-in`` tests this host's GPUs, once, without a server. ``agent_group`` registers it."""

import sys
import threading
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import AsJson, Format, Page, Table, json_of, print_line, show
from muster.cli.framework.tables import Column
from muster.cli.host.agent import open_probe
from muster.cli.host.agent_options import DcgmLevel, Faults, NumSimulated, Simulated, SimulatedModel, num_simulated
from muster.logs import configure_logs
from muster.settings import load_settings

if TYPE_CHECKING:
    from agents.probes.interface import Probe
    from health.burn_in import BurnInFigures, Verdict
    from muster.domain.ids import GpuUuid
    from muster.wire.burn_in import Figures


COLUMNS: Final = (
    Column("GPU", lambda row: row["gpu"]),
    Column("VERDICT", lambda row: row["verdict"]),
    Column("BF16 TFLOP/s", lambda row: row["gemm"]),
    Column("SECONDS", lambda row: row["took"]),
)


def burn_in(
    simulated: Simulated = None,
    gpus: NumSimulated = None,
    faults: Faults = None,
    dcgm_diag: DcgmLevel = None,
    deadline: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds a GPU may take.")] = 900.0,
    *,
    as_json: AsJson = False,
) -> int:
    """Burn in every GPU of this host and compare them. Exit code 0: all passed; 1: not all."""
    count = num_simulated(simulated, gpus, faults, dcgm_diag)
    settings = load_settings()
    configure_logs(settings, "agent-burn-in")
    probe = open_probe(count, model=simulated or SimulatedModel.H100, faults=faults)
    try:
        found = _measure(probe, str(settings.job_python or sys.executable), deadline, dcgm_diag)
    finally:
        probe.close()
    if not found:
        raise CommandError("the NVIDIA driver lists no GPU", "Look at `lspci` and the kernel log.", Exit.NOT_FOUND)
    verdicts = _verdicts(found)
    if as_json:
        print_line(json_of([_document(uuid, figures, verdicts.get(uuid)) for uuid, figures in found.items()], indent=2))
    else:
        show(_page(found, verdicts), Format())
    return Exit.OK if len(verdicts) == len(found) and _all_passed(verdicts) else Exit.FAILED


def _measure(probe: "Probe", python: str, deadline_s: float, dcgm_level: int | None) -> "dict[GpuUuid, Figures | str]":
    from agents.burn_in.bench_process import Bench
    from agents.burn_in.measuring import Measuring
    from agents.dcgm.diagnosing import DcgmDiag
    from agents.probes.interface import ProbeError

    try:
        uuids = [gpu.uuid for gpu in probe.identify().gpus]
    except ProbeError as error:
        raise CommandError(str(error), error.suggestion, Exit.NOT_FOUND) from error
    found: dict[GpuUuid, Figures | str] = {}
    measuring = Measuring(probe, Bench(python), diag=None if dcgm_level is None else DcgmDiag(dcgm_level))
    measuring.run(dict.fromkeys(uuids, deadline_s), threading.Event(), found.__setitem__)
    return {uuid: found[uuid] for uuid in uuids}


def _verdicts(found: "dict[GpuUuid, Figures | str]") -> "dict[GpuUuid, Verdict]":
    """Return each GPU's verdict, compared with the others of its kind on this host."""
    from health.burn_in import verdict_of
    from muster.domain.policy.document import DEFAULT_POLICY

    measured = {uuid: _plain(uuid, figures) for uuid, figures in found.items() if not isinstance(figures, str)}
    policy = DEFAULT_POLICY.health.burn_in
    return {uuid: verdict_of(figures, measured.values(), policy) for uuid, figures in measured.items()}


def _plain(uuid: "GpuUuid", figures: "Figures") -> "BurnInFigures":
    from msgspec import UNSET

    from health.burn_in import BurnInFigures, ComparisonKey, PartialSum

    return BurnInFigures(
        gpu_uuid=uuid,
        key=ComparisonKey(figures.model, figures.driver, figures.library),
        partial_sums=tuple(PartialSum(each.name, each.golden, each.measured) for each in figures.partial_sums),
        bands=figures.bands,
        counter_deltas=figures.counter_deltas,
        rates=figures.rates,
        vendor_failures=() if figures.vendor_tests is UNSET else figures.vendor_tests.failures,
    )


def _all_passed(verdicts: "dict[GpuUuid, Verdict]") -> bool:
    return all(verdict.outcome == "passed" for verdict in verdicts.values())


def _document(uuid: "GpuUuid", figures: "Figures | str", verdict: "Verdict | None") -> dict[str, object]:
    import msgspec

    if isinstance(figures, str) or verdict is None:
        return {"gpu_uuid": uuid, "could_not_run": figures}
    return {
        "gpu_uuid": uuid,
        "outcome": verdict.outcome,
        "reasons": list(verdict.reasons),
        "figures": msgspec.to_builtins(figures),
    }


def _page(found: "dict[GpuUuid, Figures | str]", verdicts: "dict[GpuUuid, Verdict]") -> Page:
    rows = [_row(uuid, figures, verdicts.get(uuid)) for uuid, figures in found.items()]
    said: list[str | Table] = [Table(COLUMNS, rows, indent="")]
    for uuid, figures in found.items():
        said += [f"{uuid}: {why}" for why in ([figures] if isinstance(figures, str) else verdicts[uuid].reasons)]
    if any(not isinstance(figures, str) and figures.is_simulated for figures in found.values()):
        said.append("The GPUs are simulated: sums were computed on this CPU, rates are the simulation's.")
    return Page(rows, said)


def _row(uuid: "GpuUuid", figures: "Figures | str", verdict: "Verdict | None") -> dict[str, object]:
    if isinstance(figures, str) or verdict is None:
        return {"gpu": uuid, "verdict": "COULD NOT RUN", "gemm": "", "took": ""}
    gemm = figures.rates.get("gemm_bf16_sustained_tflops")
    rate = "" if gemm is None else f"{gemm:g}"
    return {"gpu": uuid, "verdict": verdict.outcome.upper(), "gemm": rate, "took": f"{figures.took_s:.2f}"}
