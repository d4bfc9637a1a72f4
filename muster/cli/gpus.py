"""``muster gpu``."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import typer

from muster.cli.exits import CommandError, Exit
from muster.cli.gpu_words import say_gpu, standing_words
from muster.cli.output import AsJson, print_json, print_table, say_consequences
from muster.cli.profile import open_client
from muster.client.rest import RestClient

app = typer.Typer(help="GPUs: what is known of each, and what to do about it.", no_args_is_help=True)

GpuName = Annotated[str, typer.Argument(metavar="GPU", help="GPU-…, or as much of it as names one alone.")]
Reason = Annotated[str, typer.Option(help="Why; whoever looks at the GPU later finds it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and do nothing.")]
Step = Literal["start", "finish", "fail"]
Action = Literal["reset", "reboot", "power_cycle", "field_diagnosis", "swap", "other"]
LEFT_OUT: Final = ".."
_UUID_PART: Final = re.compile(r"[!-~]{1,128}")


@app.command("list")
def list_gpus(
    standing: Annotated[list[str] | None, typer.Option(help="HEALTHY, SUSPECT, …; may be repeated.")] = None,
    node: Annotated[str | None, typer.Option(help="node_…")] = None,
    model: Annotated[str | None, typer.Option(help="A part of its model's name.")] = None,
    below: Annotated[float | None, typer.Option(help="Only scores under this.", min=0, max=101)] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Every GPU with its standing and score."""
    standings = [name.upper() for name in standing or []] or None
    filters = {"standing": standings, "node": node, "model": model, "below": below}
    is_whole_fleet = all(value is None for value in filters.values())
    with open_client(as_operator=True) as client:
        found = client.gpus(**filters)
    if as_json:
        print_json(found)
        return
    short = shortened([gpu["uuid"] for gpu in found], is_whole_fleet=is_whole_fleet)
    rows = [
        (short[gpu["uuid"]], gpu["slot_index"], gpu["model"], standing_words(gpu), score_words(gpu)) for gpu in found
    ]
    empty = "No GPUs are enrolled." if is_whole_fleet else "No GPU is like that."
    print_table(("GPU", "SLOT", "MODEL", "STANDING", "SCORE"), rows, empty=empty)


@app.command("show")
def show(gpu: GpuName, *, as_json: AsJson = False) -> None:
    """One GPU: score, evidence, what would bring it back, cordons, who holds it."""
    with open_client(as_operator=True) as client:
        found = client.gpu(named(client, gpu))
    if as_json:
        print_json(found)
    else:
        say_gpu(found)


@app.command("dismiss")
def dismiss(
    gpu: GpuName,
    evidence: Annotated[str, typer.Argument(help="ev_…")],
    reason: Reason,
    *,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take evidence out of the judgement; a quarantine that stood on it alone ends."""
    _do(gpu, lambda client, uuid: client.dismiss_evidence(uuid, evidence, reason, dry_run=dry_run), as_json=as_json)


@app.command("repair")
def repair(
    gpu: GpuName,
    step: Annotated[Step, typer.Argument(help="start, finish or fail.")],
    reason: Reason,
    action: Annotated[Action, typer.Option(help="What is done, at the start.")] = "other",
    fault_group: Annotated[
        str | None, typer.Option("--for", help="What it is for, such as memory; by its evidence where not said.")
    ] = None,
    *,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Tell that a repair begins, is done, or failed. Once done, a burn-in follows."""

    def tell(client: RestClient, uuid: str) -> dict[str, Any]:
        return client.repair_gpu(uuid, step, reason, action=action, fault_group=fault_group, dry_run=dry_run)

    _do(gpu, tell, as_json=as_json)


@app.command("retire")
def retire(gpu: GpuName, reason: Reason, *, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Take it out of service; what runs on it is evacuated."""
    _do(gpu, lambda client, uuid: client.retire_gpu(uuid, reason, dry_run=dry_run), as_json=as_json)


@app.command("reinstate")
def reinstate(gpu: GpuName, reason: Reason, *, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Bring a retired GPU back: UNPROVEN, its burn-in follows."""
    _do(gpu, lambda client, uuid: client.reinstate_gpu(uuid, reason, dry_run=dry_run), as_json=as_json)


def named(client: RestClient, text: str) -> str:
    """The UUID that ``text`` begins, ends or shortens, where it is one GPU's alone. Raises ``CommandError``."""
    uuids = [str(gpu["uuid"]) for gpu in client.gpus(uuid=text)] if _UUID_PART.fullmatch(text) else []
    if text in uuids:
        return text
    head, is_short, tail = text.partition(LEFT_OUT)
    found = [
        uuid
        for uuid in uuids
        if text and ((uuid.startswith(head) and uuid.endswith(tail)) or (not is_short and uuid.endswith(text)))
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CommandError(f"there is no GPU {text!r}", "`muster gpu list` shows them.", Exit.NOT_FOUND)
    raise CommandError(f"{text!r} could be {len(found)} GPUs", f"Such as {found[0]} or {found[1]}.", Exit.USAGE)


def shortened(uuids: list[str], *, is_whole_fleet: bool = True) -> dict[str, str]:
    """UUID → its beginning, or its beginning and end, where that tells all of them apart; else as it is.

    Where they are not the whole fleet, as much stays as tells them from the others too.
    """
    lengths = ((12, 0), (12, 4), (17, 4), (17, 8))
    for head, tail in lengths if is_whole_fleet else lengths[2:]:
        short = {uuid: _shortened(uuid, head, tail) for uuid in uuids}
        if len(set(short.values())) == len(short):
            return short
    return {uuid: uuid for uuid in uuids}


def _shortened(uuid: str, head: int, tail: int) -> str:
    if len(uuid) <= head + len(LEFT_OUT) + tail:
        return uuid
    return uuid[:head] + (f"{LEFT_OUT}{uuid[-tail:]}" if tail else "")


def score_words(gpu: dict[str, Any]) -> str:
    return "" if gpu["score"] is None else f"{gpu['score']:.0f}"


def _do(gpu: str, work: Callable[[RestClient, str], dict[str, Any]], *, as_json: bool) -> None:
    with open_client(as_operator=True) as client:
        found = work(client, named(client, gpu))
    if as_json:
        print_json(found)
    elif found.get("dry_run"):
        say_consequences(found)
    else:
        typer.echo(f"{found['uuid']} is {standing_words(found)}")
