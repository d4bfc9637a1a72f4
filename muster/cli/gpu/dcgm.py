"""``muster dcgm`` reads files that DCGM wrote, without a server, a GPU or DCGM."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from agents.dcgm.diagnosis import Diagnosis, DiagnosisError, TestResult, parse_diagnosis
from agents.dcgm.metrics import DcgmGpu, Scrape, parse_metrics
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import Listing, reads
from muster.cli.framework.tables import Column, Document

app = typer.Typer(help="What DCGM says: its diagnoses and its exporter's metrics.", no_args_is_help=True)
parse = typer.Typer(help="Read what DCGM wrote.", no_args_is_help=True)
app.add_typer(parse, name="parse")

File = Annotated[Path, typer.Argument(help="The file; - for stdin.", show_default=False, allow_dash=True)]
MAX_BYTES: Final = 64 << 20
RESULTS: Final = (
    Column("TEST", lambda item: item["test"]),
    Column("ON", lambda item: item["on"]),
    Column("SERIAL", lambda item: item["serial"] or "—"),
    Column("RESULT", lambda item: item["status"]),
    Column("WHY", lambda item: item["why"], is_text=True),
)
DIAGNOSED_GPU_COLUMNS: Final = (
    Column("GPU", lambda item: item["gpu_uuid"]),
    Column("MODEL", lambda item: item["model"] or "—"),
    Column("°C", lambda item: _shown(item, "temperature_c")),
    Column("W", lambda item: _shown(item, "power_w")),
    Column("ECC", lambda item: _shown(item, "ecc_uncorrected_volatile")),
    Column("LAST XID", lambda item: "—" if item["last_xid"] is None else item["last_xid"]),
)


@reads(parse, "diag", example="muster dcgm parse diag diag.json")
def diag(file: File) -> Listing:
    """List the results of `dcgmi diag -r N -j`, a row a test and GPU; as JSON an object a line. Exit code 1 if a test
    failed.
    """
    try:
        found = parse_diagnosis(_read(file))
    except DiagnosisError as fault:
        raise CommandError(f"{file}: {fault}", code=Exit.INVALID) from None
    rows = [_row(each) for each in found.results]
    code = Exit.FAILED if found.has_failed else Exit.OK
    return Listing(rows, RESULTS, "No test was run.", notes=_notes(found), code=code, is_streamed=True)


@reads(parse, "metrics", example="muster dcgm parse metrics metrics.txt")
def metrics(file: File) -> Listing:
    """List a dcgm-exporter's text as Muster's readings, a row a GPU; as JSON an object a line."""
    found = parse_metrics(_read(file).splitlines())
    if not found.gpus:
        advice = "Wanted is the text of a dcgm-exporter, such as of `curl localhost:9400/metrics`."
        raise CommandError(f"{file}: no sample of any GPU is in it", advice, Exit.INVALID)
    rows = [_gpu_row(each) for each in found.gpus]
    return Listing(rows, DIAGNOSED_GPU_COLUMNS, "No GPU.", notes=_counts(found), is_streamed=True)


def _read(file: Path) -> str:
    try:
        content = sys.stdin.buffer.read(MAX_BYTES + 1) if str(file) == "-" else _head_of(file)
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", code=Exit.NOT_FOUND) from None
    if len(content) > MAX_BYTES:
        raise CommandError(f"{file} is larger than {MAX_BYTES >> 20} MiB", "DCGM writes some KiB.", Exit.INVALID)
    return content.decode("utf-8", "replace")


def _head_of(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


def _row(result: TestResult) -> dict[str, Any]:
    entity = "" if result.entity_id is None else f" {result.entity_id}"
    why = "; ".join(each.text + (f" ({each.severity})" if each.severity else "") for each in result.warnings)
    return {**result.as_document(), "on": f"{result.entity_group}{entity}", "why": why}


def _notes(found: Diagnosis) -> list[str]:
    tools = f"DCGM {found.version or 'of an unknown version'}, driver {found.driver or 'unknown'}"
    return [tools, *([f"dcgmi did not finish: {found.fault}"] if found.fault is not None else [])]


def _gpu_row(gpu: DcgmGpu) -> dict[str, Any]:
    return {
        "gpu_uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "pci": gpu.pci,
        "host": gpu.host,
        "driver": gpu.driver,
        "last_xid": gpu.last_xid,
        "values": gpu.values,
    }


def _counts(found: Scrape) -> list[str]:
    said = [f"{found.num_samples} samples, {found.num_unknown} of fields that Muster has no use for"]
    if found.bad_lines:
        lines = ", ".join(map(str, found.bad_lines[:5])) + (", …" if len(found.bad_lines) > 5 else "")
        count = len(found.bad_lines)
        said.append(
            f"{count} lines are no samples of a GPU: {lines}" if count > 1 else f"line {lines} is no sample of a GPU"
        )
    return said


def _shown(item: Document, name: str) -> str:
    value = item["values"].get(name)
    return "—" if value is None else f"{value:g}"
