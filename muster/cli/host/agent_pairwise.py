"""``muster agent pairwise`` checks a gang of hosts, once, without a server. ``agent_group`` registers it."""

import asyncio
import re
import secrets
import socket
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from muster.cli.framework.durations import seconds_of
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import AsJson, Format, Page, Table, json_of, print_line, show
from muster.cli.framework.sizes import bytes_of
from muster.cli.framework.tables import Column
from muster.settings import load_settings

if TYPE_CHECKING:
    from workers.host.pairwise.lead import Check, Outcome

app = typer.Typer(help="Hosts of a gang, by all-gathers of pairs: which one is bad or slow.", no_args_is_help=True)
PORT: Final = 29_400
GATHER_BYTES_MAX: Final = 4 << 30
ROUND_S_MAX: Final = 3600.0
_HOST: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_RUN: Final = re.compile(r"[A-Za-z0-9_-]{4,64}")
COLUMNS: Final = (
    Column("HOST", lambda row: row["host"]),
    Column("VERDICT", lambda row: row["verdict"]),
    Column("WHY", lambda row: row["why"], is_text=True),
)
Run = Annotated[str | None, typer.Option("--run", help="The check's name, 4 to 64 of A-Z a-z 0-9 _ -.")]


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


_TORCH_DEVICES: Final[dict[Device, Literal["cpu", "cuda"] | None]] = {
    Device.AUTO: None,
    Device.CPU: "cpu",
    Device.CUDA: "cuda",
}


@app.callback()
def root() -> None:
    """Check hosts in pairs: one leads, each host joins."""


@app.command("lead", epilog="Example: `muster agent pairwise lead --hosts gpu-01,gpu-02,gpu-03 --run tuesday`")
def lead(
    hosts: Annotated[str, typer.Option(help="All of them, by commas, neighbours next to each other.")],
    run: Run = None,
    listen: Annotated[str, typer.Option(help="ADDRESS:PORT that all hosts reach.")] = f"0.0.0.0:{PORT}",
    device: Annotated[Device, typer.Option(help="auto: GPUs by NCCL where all hosts have some.")] = Device.AUTO,
    size: Annotated[str, typer.Option(help="What each host gives to a gather.")] = "16MiB",
    gathers: Annotated[int, typer.Option(min=1, max=1000, help="So many are timed in a round.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="At most.")] = 4,
    slow_fraction: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="Slow is under that part of the other groups' median.")
    ] = 0.5,
    round_time: Annotated[str, typer.Option(help="A round may take so long.")] = "60s",
    wait: Annotated[str, typer.Option(help="For hosts to come.")] = "2m",
    *,
    as_json: AsJson = False,
) -> int:
    """Lead a check, from anywhere that all hosts reach; each of them runs `muster agent pairwise join`.

    Exit code 0: every host is cleared; 1: one is bad, absent or undecided, or a path is bad.
    """
    from health.pairwise.check import PairwiseLimits
    from workers.host.pairwise.lead import Check

    check = Check(
        hosts=_hosts_of(hosts),
        run=_run_of(run) if run is not None else secrets.token_hex(8),
        device=_TORCH_DEVICES[device],
        gather_bytes=_gather_bytes(size),
        num_gathers=gathers,
        round_s=_bounded("--round-time", round_time),
        wait_s=_bounded("--wait", wait),
        limits=PairwiseLimits(rounds_max=rounds, slow_fraction=slow_fraction),
    )
    outcome = _led(check, _address_of("--listen", listen))
    if as_json:
        print_line(json_of(_document(outcome), indent=2))
    else:
        show(_page(outcome), Format())
    return Exit.OK if outcome.is_good else Exit.FAILED


@app.command("join", epilog="Example: `muster agent pairwise join login-1:29400 --run tuesday`, on each host")
def join(
    leader: Annotated[str, typer.Argument(metavar="LEAD", help="ADDRESS:PORT of the lead.")],
    run: Annotated[str, typer.Option("--run", help="The check's name, as the lead was given it or printed it.")],
    name: Annotated[str | None, typer.Option(help="As the lead names this host. Default: its host name.")] = None,
    address: Annotated[
        str | None, typer.Option(help="This host's address for the others. Default: the one that the lead sees.")
    ] = None,
    wait: Annotated[str, typer.Option(help="For the lead to be there.")] = "2m",
) -> int:
    """Take part, as one host. MUSTER_JOB_PYTHON names the interpreter with torch, if not this one.

    Exit code 0: this host is cleared; 1: it is bad or undecided; 7: no lead.
    """
    from workers.host.pairwise.attending import Attendance, LeadGoneError, attend

    own_name = (name or socket.gethostname()).lower()
    if _HOST.fullmatch(own_name) is None:
        raise CommandError(f"--name {own_name!r}: a host's name is of a-z 0-9 . -", code=Exit.USAGE)
    attendance = Attendance(
        lead=_address_of("LEAD", leader),
        run=_run_of(run),
        host=own_name,
        python=str(load_settings().job_python or sys.executable),
        address=address,
        patience_s=_bounded("--wait", wait),
    )
    try:
        ended = attend(attendance, lambda line: typer.echo(f"{own_name}: {line}", err=True))
    except LeadGoneError as fault:
        raise CommandError(
            str(fault), "Check that `muster agent pairwise lead` runs at that address.", Exit.UNREACHABLE
        ) from fault
    if ended.outcome == "refused":
        raise CommandError(f"the lead refused this host: {ended.why}", code=Exit.DENIED)
    print_line(f"{own_name}: {ended.outcome}" + (f": {ended.why}" if ended.why else ""))
    return Exit.OK if ended.outcome == "cleared" else Exit.FAILED


def _led(check: "Check", listen: tuple[str, int]) -> "Outcome":
    from workers.host.pairwise.lead import Lead

    def ready(port: int) -> None:
        _print(f"leads at port {port}, run {check.run}, {len(check.hosts)} hosts")

    try:
        return asyncio.run(Lead(check, _print).run(listen, ready))
    except OSError as fault:
        words = f"--listen {listen[0]}:{listen[1]}: {fault.strerror or fault}"
        raise CommandError(words, "Name another port, or an address of this machine.", Exit.USAGE) from fault


def _print(line: str) -> None:
    typer.echo(f"pairwise: {line}", err=True)


def _hosts_of(text: str) -> tuple[str, ...]:
    names = tuple(part.strip().lower() for part in text.split(","))
    for name in names:
        if _HOST.fullmatch(name) is None:
            raise CommandError(f"--hosts: {name!r} is no host's name, which is of a-z 0-9 . -", code=Exit.USAGE)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CommandError(f"--hosts: {', '.join(twice)} is named twice", "Name each host once.", Exit.USAGE)
    if len(names) < 2:
        raise CommandError(
            "--hosts: a check needs at least two hosts", "With three or more, the check finds the bad one.", Exit.USAGE
        )
    return names


def _run_of(text: str) -> str:
    if _RUN.fullmatch(text) is None:
        raise CommandError(f"--run {text!r}: must be 4 to 64 of A-Z a-z 0-9 _ -", code=Exit.USAGE)
    return text


def _gather_bytes(text: str) -> int:
    found = (bytes_of(text, "--size") or 0) // 4 * 4
    if not 4 <= found <= GATHER_BYTES_MAX:
        raise CommandError(f"--size {text}: must be 4 bytes to 4GiB", code=Exit.USAGE)
    return found


def _bounded(option: str, text: str) -> float:
    found = seconds_of(text, option) or 0.0
    if not 1 <= found <= ROUND_S_MAX:
        raise CommandError(f"{option} {text}: must be 1s to 1h", code=Exit.USAGE)
    return found


def _address_of(option: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise CommandError(f"{option} {text!r}: must be ADDRESS:PORT, such as login-1:{PORT}", code=Exit.USAGE)
    return host, int(port)


def _verdicts(outcome: "Outcome") -> Iterator[dict[str, str]]:
    found = outcome.assessment
    for host in (*found.bad, *outcome.absent, *found.undecided, *found.cleared):
        if host in found.bad:
            yield {"host": host, "verdict": "BAD", "why": found.bad[host]}
        elif host in outcome.absent:
            yield {"host": host, "verdict": "ABSENT", "why": "it never came"}
        elif host in found.undecided:
            yield {"host": host, "verdict": "UNDECIDED", "why": found.undecided[host]}
        else:
            yield {"host": host, "verdict": "CLEARED", "why": ""}


def _page(outcome: "Outcome") -> Page:
    rows = list(_verdicts(outcome))
    said: list[str | Table] = [Table(COLUMNS, rows, indent="")]
    said += [
        f"{first} and {second} fail with each other and pass with others: look at the path between them"
        for first, second in outcome.assessment.paths
    ]
    backend = "NCCL, on GPUs" if outcome.device == "cuda" else "gloo, on CPUs"
    num_rounds = len(outcome.rounds)
    said.append(f"{num_rounds} {'round' if num_rounds == 1 else 'rounds'} by {backend}.")
    if not outcome.assessment.is_speed_compared:
        said.append("Speed was not compared: there was no second group to compare it with.")
    return Page(rows, said)


def _document(outcome: "Outcome") -> dict[str, Any]:
    return {
        "is_good": outcome.is_good,
        "device": outcome.device,
        "is_speed_compared": outcome.assessment.is_speed_compared,
        "hosts": [{**row, "verdict": row["verdict"].lower()} for row in _verdicts(outcome)],
        "bad_paths": [list(pair) for pair in outcome.assessment.paths],
        "rounds": [
            [
                {
                    "hosts": list(group.hosts),
                    "rate_bytes_per_s": group.rate_bytes_per_s,
                    "why": group.why,
                    "silent": sorted(group.silent),
                }
                for group in groups
            ]
            for groups in outcome.rounds
        ],
    }
