"""``muster sim`` injects faults into the local stack's simulated GPUs, which shows how the stack recovers."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.names import GpuName, gpu_named
from muster.cli.framework.output import Done, Listing, changes, reads
from muster.cli.framework.profile import LOCAL, find_profile, local_profile, open_client
from muster.cli.framework.tables import Column, Document

app = typer.Typer(help="Faults of the local stack's simulated GPUs.", no_args_is_help=True)
inject = typer.Typer(help="Break something.", no_args_is_help=True)
app.add_typer(inject, name="inject")
SIMULATED_FAULTS = {
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
    "state": None,
    "rate": None,
}
"""Kind of fault → what its number means; ``state`` and ``rate`` have values by name."""
BY_NAME: Final = ("state", "rate")
IN_BURN_IN: Final = ("wrong_result", "slow")
IN_SAMPLES: Final = ("late", "ecc_corrected", "nvlink_down")


def _number(fault: Document) -> object:
    meaning = SIMULATED_FAULTS[fault["kind"]]
    if fault["kind"] in BY_NAME:
        place = f" on link {fault['link']}" if fault.get("link") is not None else ""
        return ", ".join(f"{name}={value:g}" for name, value in fault["values"].items()) + place
    return "" if meaning is None else fault.get(meaning, "")


COLUMNS: Final = (
    Column("GPU", lambda item: item["gpu"]),
    Column("FAULT", lambda item: item["kind"]),
    Column("NUMBER", _number),
)


def _kinds() -> list[tuple[str, str]]:
    return [(kind, meaning or "") for kind, meaning in SIMULATED_FAULTS.items()]


@changes(inject, "gpu", example="muster sim inject gpu GPU-… xid 95")
def inject_gpu(
    gpu: GpuName,
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(SIMULATED_FAULTS)}.", autocompletion=_kinds)],
    number: Annotated[int | None, typer.Argument(help="The XID, a count, clock event bits, °C.")] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(help="NAME=NUMBER of a `state`, such as ecc_enabled=0, or of a `rate`: so much more a minute."),
    ] = None,
    link: Annotated[int | None, typer.Option(min=0, max=63, help="Of a `rate`: the NVLink that counts.")] = None,
) -> Done:
    """Inject a fault beneath the probe, as a driver would report it."""
    import msgspec

    from agents.probes.faults import Fault, write_fault

    if kind not in SIMULATED_FAULTS:
        raise CommandError(f"{kind} is no fault", f"There are: {', '.join(SIMULATED_FAULTS)}.", Exit.USAGE)
    document: dict[str, Any] = {"kind": kind, "is_in_kernel_log": kind == "xid"}
    meaning = SIMULATED_FAULTS[kind]
    if number is None and kind == "xid":
        raise CommandError("an xid needs its number", "Such as `muster sim inject gpu GPU-… xid 95`.", Exit.USAGE)
    if number is not None:
        document[str(meaning)] = _in_range(kind, meaning, number)
    document |= _by_name(kind, value or [], link)
    path = _faults_file()
    document["gpu"] = _known_gpu(gpu)
    try:
        fault = write_fault(path, msgspec.convert(document, Fault))
    except msgspec.ValidationError as error:
        raise CommandError(str(error), code=Exit.USAGE) from error
    words = f"{kind}{'' if number is None else f' {number}'} on {fault.gpu}; {_where_seen(fault.gpu, kind)}"
    return Done(msgspec.to_builtins(fault), words)


def _by_name(kind: str, values: list[str], link: int | None) -> dict[str, Any]:
    """Return the values of a ``state`` or a ``rate``. Raises ``CommandError``."""
    if kind not in BY_NAME:
        if values or link is not None:
            raise CommandError(f"--value and --link are for {' and '.join(BY_NAME)}, not for {kind}", code=Exit.USAGE)
        return {}
    if link is not None and kind != "rate":
        raise CommandError("--link is for a rate", code=Exit.USAGE)
    found: dict[str, float] = {}
    for text in values:
        name, _, number = text.partition("=")
        try:
            found[name] = float(number)
        except ValueError:
            raise CommandError(f"--value {text}: must be NAME=NUMBER, such as ecc_enabled=0", code=Exit.USAGE) from None
    return {"values": found, "link": link}


def _in_range(kind: str, meaning: str | None, number: int) -> int:
    """Return the number. Raises ``CommandError`` naming the accepted range."""
    if meaning is None:
        raise CommandError(f"{kind} takes no number", f"Leave out {number}.", Exit.USAGE)
    least, most = _range_of(meaning)
    if number < least or (most is not None and number > most):
        accepted = f"from {least:g} to {most:g}" if most is not None else f"of {least:g} or more"
        raise CommandError(f"{kind} {number}: the {meaning} is out of range", f"Write one {accepted}.", Exit.USAGE)
    return number


def _range_of(field: str) -> tuple[float, float | None]:
    """Return the bounds of a field by the fault's own type."""
    import msgspec

    from agents.probes.faults import Fault

    info: Any = msgspec.inspect.type_info(Fault)
    found: Any = next(each.type for each in info.fields if each.name == field)
    bounded = next((each for each in getattr(found, "types", (found,)) if getattr(each, "ge", None) is not None), found)
    return bounded.ge, bounded.le


def _where_seen(gpu: str, kind: str) -> str:
    if kind in IN_BURN_IN:
        return f"only a burn-in can see it: `muster burnin run {gpu} --reason …`"
    if kind in BY_NAME:
        return "its agent reports it within about a minute"
    if kind in IN_SAMPLES:
        return "it stands in the samples; no detector judges it yet"
    return "see `muster event list -f`"


@reads(app, "list", example="muster sim list")
def list_faults() -> Listing:
    """List the faults that were injected and not cleared."""
    import msgspec

    from agents.probes.faults import read_faults

    return Listing(msgspec.to_builtins(read_faults(_faults_file())), COLUMNS, "No fault stands.")


@changes(app, "clear", example="muster sim clear GPU-…")
def clear(gpu: Annotated[str | None, typer.Argument(help="This GPU alone; without it all.")] = None) -> Done:
    """Clear faults. Their evidence stays: it is never deleted."""
    from agents.probes.faults import clear_faults
    from muster.domain.ids import GpuUuid

    path = _faults_file()
    uuid = None if gpu is None else GpuUuid(_known_gpu(gpu))
    num_gone = clear_faults(path, uuid)
    return Done({"cleared": num_gone, "gpu": uuid}, f"{num_gone} faults are cleared")


def _faults_file() -> Path:
    """Return the local stack's file of faults. A chosen profile may be that stack's under another name or key."""
    profile, local = find_profile(), local_profile()
    path = profile.faults_file
    if path is None and local is not None and local.api_url == profile.api_url:
        path = local.faults_file
    if path is None and local is not None and local.faults_file is not None:
        message = f"the profile {profile.name!r} ({profile.api_url}) has no simulated GPUs"
        raise CommandError(message, f"The local stack has: `muster --profile {LOCAL} sim …`.", Exit.USAGE)
    if path is None:
        message = "there is no local stack with simulated GPUs here"
        raise CommandError(message, "Start one with `muster up`; real GPUs break by themselves.", Exit.USAGE)
    return path


def _known_gpu(text: str) -> str:
    with open_client(as_operator=True) as client:
        return gpu_named(client, text)
