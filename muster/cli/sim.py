"""``muster sim``: faults of the local stack's simulated GPUs, so that anyone can watch recovery happen."""

from pathlib import Path
from typing import Annotated, Final

import typer

from muster.cli.exits import CommandError, Exit
from muster.cli.output import AsJson, print_json, print_table
from muster.cli.profile import find_profile, open_client

app = typer.Typer(help="Faults of simulated GPUs.", no_args_is_help=True)
inject = typer.Typer(help="Break something.", no_args_is_help=True)
app.add_typer(inject, name="inject")
KINDS = {
    "xid": "code",
    "lost": None,
    "late": None,
    "ecc_corrected": "count",
    "ecc_uncorrected": "count",
    "row_remap_pending": None,
    "row_remap_failure": None,
    "clock_event": "bits",
    "heat": "temperature_c",
    "nvlink_down": "count",
    "wrong_result": None,
    "slow": None,
}
"""Kind of fault → what its number means."""
IN_BURN_IN: Final = ("wrong_result", "slow")
IN_SAMPLES: Final = ("late", "ecc_corrected", "nvlink_down")


@inject.command("gpu")
def inject_gpu(
    gpu: Annotated[str, typer.Argument(help="GPU-…; its end is enough where it is the only one.")],
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(KINDS)}.")],
    number: Annotated[int | None, typer.Argument(help="The XID, a count, clock event bits, °C.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """A fault beneath the probe, as a driver would tell it: muster sim inject gpu GPU-… xid 95."""
    import msgspec

    from agents.probes.faults import Fault, write_fault

    if kind not in KINDS:
        raise CommandError(f"{kind} is no fault", f"There are: {', '.join(KINDS)}.", Exit.USAGE)
    meaning = KINDS[kind]
    if number is not None and meaning is None:
        raise CommandError(f"{kind} takes no number", "", Exit.USAGE)
    document: dict[str, object] = {"gpu": _known_gpu(gpu), "kind": kind, "is_in_kernel_log": kind == "xid"}
    if number is not None and meaning is not None:
        document[meaning] = number
    try:
        fault = write_fault(_faults_file(), msgspec.convert(document, Fault))
    except msgspec.ValidationError as error:
        raise CommandError(f"{kind}: {error}", "", Exit.USAGE) from error
    if as_json:
        print_json(msgspec.to_builtins(fault))
    else:
        typer.echo(f"{kind}{'' if number is None else f' {number}'} on {fault.gpu}; {_where_seen(fault.gpu, kind)}")


def _where_seen(gpu: str, kind: str) -> str:
    if kind in IN_BURN_IN:
        return f"only a burn-in can see it: `muster burnin run {gpu} --reason …`"
    if kind in IN_SAMPLES:
        return "it stands in the samples; no detector judges it yet"
    return "see `muster event list -f`"


@app.command("list")
def list_faults(*, as_json: AsJson = False) -> None:
    """What was injected and not cleared."""
    import msgspec

    from agents.probes.faults import read_faults

    found = read_faults(_faults_file())
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    rows = [(fault.gpu, fault.kind, _number(msgspec.to_builtins(fault), fault.kind)) for fault in found]
    print_table(("GPU", "FAULT", "NUMBER"), rows, empty="No fault stands.")


@app.command("clear")
def clear(gpu: Annotated[str | None, typer.Argument(help="This GPU alone.")] = None) -> None:
    """Take faults away. What was judged of them stays: evidence is never unmade."""
    from agents.probes.faults import clear_faults
    from muster.domain.ids import GpuUuid

    uuid = None if gpu is None else GpuUuid(_known_gpu(gpu))
    typer.echo(f"{clear_faults(_faults_file(), uuid)} faults are gone")


def _number(fault: dict[str, object], kind: str) -> object:
    meaning = KINDS[kind]
    return "" if meaning is None else fault.get(meaning, "")


def _faults_file() -> Path:
    path = find_profile().faults_file
    if path is None:
        message = "there is no local stack with simulated GPUs here"
        raise CommandError(message, "Start one with `muster up`; real GPUs break by themselves.", Exit.USAGE)
    return path


def _known_gpu(text: str) -> str:
    with open_client(as_operator=True) as client:
        found = [str(gpu["uuid"]) for gpu in client.gpus(uuid=text) if str(gpu["uuid"]).endswith(text)]
    if len(found) != 1:
        words = f"{len(found)} GPUs end in {text}" if found else f"there is no GPU {text}"
        raise CommandError(words, "`muster gpu list` names them.", Exit.NOT_FOUND)
    return found[0]
