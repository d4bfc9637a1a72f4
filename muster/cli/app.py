"""The command's tree and its edge: every fault leaves as a sentence and an exit code."""

import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from muster import __version__
from muster.cli import (
    agent,
    agent_burn_in,
    agent_run,
    audit,
    breakers,
    burn_ins,
    cordons,
    doctor,
    events,
    fleet,
    gpus,
    incidents,
    jobs,
    keys,
    quotas,
    reclaims,
    sim,
    stack,
    up,
)
from muster.cli.exits import Exit, close_quietly, say_fault

app = typer.Typer(
    name="muster",
    help="The control plane by which a GPU cloud governs its fleet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(jobs.app, name="job")
app.add_typer(keys.app, name="key")
keys.tenants.add_typer(quotas.app, name="quota")
app.add_typer(keys.tenants, name="tenant")
app.add_typer(fleet.nodes, name="node")
app.add_typer(gpus.app, name="gpu")
app.add_typer(breakers.app, name="breaker")
app.add_typer(cordons.app, name="cordon")
app.add_typer(burn_ins.app, name="burnin")
app.add_typer(incidents.app, name="incident")
app.add_typer(reclaims.app, name="reclaim")
app.add_typer(events.app, name="event")
app.add_typer(audit.app, name="audit")
app.add_typer(stack.worker, name="worker")
agent.app.command("run")(agent_run.run)
agent.app.command("burn-in")(agent_burn_in.burn_in)
app.add_typer(agent.app, name="agent")
app.add_typer(sim.app, name="sim")
app.add_typer(agent_run.join_tokens, name="join-token")
app.command("up")(up.up)
app.command("api")(stack.api)
app.command("scheduler")(stack.scheduler)
app.command("migrate")(stack.migrate)
app.command("doctor")(doctor.doctor)


@app.command("exit-codes")
def exit_codes() -> None:
    """What each exit code means."""
    for code in Exit:
        typer.echo(f"{code.value:>4}  {code.name.lower().replace('_', ' ')}")


def _say_version(is_asked: bool) -> None:  # noqa: FBT001  # Typer's callback signature
    if is_asked:
        typer.echo(f"muster {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and end.")
    ] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """The entry point. A token never belongs in an argument: process lists show it."""
    if any(argument.startswith("mst_") or "=mst_" in argument for argument in sys.argv[1:]):
        typer.echo("error: a token stands in the arguments, where every process list shows it", err=True)
        typer.echo("Put it into a file, mode 0600, and name the file in MUSTER_API_KEY_FILE.", err=True)
        sys.exit(Exit.USAGE)
    sys.exit(_run())


def _run() -> int:
    try:
        result = app(standalone_mode=False)
    except typer.Abort:
        return Exit.INTERRUPTED
    except TyperException as fault:
        show = getattr(fault, "show", None)
        if show is None:
            return say_fault(fault)
        show()
        return Exit.USAGE
    except BrokenPipeError:
        close_quietly()
        return Exit.OK
    except (Exception, KeyboardInterrupt) as fault:  # noqa: BLE001  # the command's edge
        return say_fault(fault)
    return result if isinstance(result, int) else Exit.OK
