"""``muster up`` runs the whole stack on this machine."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.policy_files import policy_of_file
from muster.cli.framework.profile import words_for_local
from muster.logs import configure_logs
from muster.settings import Settings, load_settings

if TYPE_CHECKING:
    from local.hosts import LocalHost
    from local.stack import Lead

HOSTS: Final = "h100,h100,a100,a100"
WATCHED_HOSTS: Final = "h100,h100"
GPUS: Final = 8


class Tour(StrEnum):
    """The tours: of the fleet, or of the watch over running work."""

    FLEET = "fleet"
    WATCH = "watch"

    @property
    def hosts(self) -> str:
        """The hosts that it is about."""
        return HOSTS if self is Tour.FLEET else WATCHED_HOSTS


TOUR_POLICY: Final = Path(__file__).parents[3] / "policy" / "tour.yaml"


def up(
    which: Annotated[
        Tour, typer.Argument(metavar="TOUR", help="fleet; or watch: faults of running work, on two hosts.")
    ] = Tour.FLEET,
    state_dir: Annotated[Path, typer.Option(help="Where everything is kept.")] = Path(".muster"),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the API and the console, on loopback.")] = 8420,
    hosts: Annotated[
        str | None, typer.Option(help="The GPUs of each simulated host: h100, a100 or h200. Default: the tour's.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, max=72, help="Simulated GPUs of each host.")] = GPUS,
    policy: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Instead of policy/tour.yaml.")
    ] = None,
    *,
    real: Annotated[bool, typer.Option("--real", help="This machine's own GPUs, by NVML.")] = False,
    tour: Annotated[
        bool | None, typer.Option("--tour/--no-tour", help="Show what Muster does, in 3 minutes at most.")
    ] = None,
    soak: Annotated[
        float | None,
        typer.Option(min=1, max=10_080, help="Minutes: instead of the tour, train and kill something each minute."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order in which things die.")] = 1,
    exit_when_steps_hold: Annotated[
        bool, typer.Option("--exit", help="End with the tour or soak; exit code 0 if it held.")
    ] = False,
) -> int:
    """Start the whole control plane on this machine, with simulated hosts or its own GPUs."""
    from local.errors import EmbeddedServerError
    from local.local_stack import StackPlan
    from local.stack import StackError, run_stack

    configure_logs(_quiet(load_settings()), "up")
    hosts = which.hosts if hosts is None else hosts
    is_whole = not real and (hosts, gpus) == (which.hosts, GPUS)
    requested = True if tour is None and which is not Tour.FLEET else tour
    lead = _lead(which, requested, soak, seed, is_whole=is_whole, must_exit=exit_when_steps_hold)
    state_dir = state_dir.absolute()
    plan = StackPlan(
        state_dir=state_dir,
        port=port,
        hosts=_real_host(state_dir) if real else _simulated_hosts(hosts, gpus, state_dir),
        policy=policy_of_file(policy or TOUR_POLICY, Exit.USAGE),
        policy_name=_policy_words(policy),
        command=words_for_local(state_dir),
    )
    try:
        return run_stack(plan, lead=lead, exit_when_steps_hold=exit_when_steps_hold)
    except (StackError, EmbeddedServerError) as error:
        raise CommandError(str(error), f"Logs are in {state_dir / 'logs'}.", Exit.FAILED) from error


def _quiet(settings: Settings) -> Settings:
    """Raise the log level for a person who watches, unless a level was set: success needs no log line."""
    if "log_level" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"log_level": "warning"})


def _lead(
    which: Tour,
    requested: bool | None,  # noqa: FBT001  # an option's value
    soak: float | None,
    seed: int,
    *,
    is_whole: bool,
    must_exit: bool,
) -> "Lead | None":
    """Return the tour or the soak to run. The default is the tour, if the hosts are the ones that it is about."""
    if requested is False and which is not Tour.FLEET:
        raise CommandError(f"--no-tour leaves out the tour {which}", f"Leave out --no-tour or {which}.", Exit.USAGE)
    if not is_whole and (requested or soak is not None):
        named = "tour" if soak is None else "soak"
        words = f"the {named} is about {which.hosts} with {GPUS} GPUs each"
        raise CommandError(words, f"Leave out --{named}.", Exit.USAGE)
    if requested and soak is not None:
        raise CommandError("--soak is instead of the tour", "Leave out --tour.", Exit.USAGE)
    if soak is not None:
        from local.soak import soak as soaking

        return soaking(soak, seed)
    if is_whole if requested is None else requested:
        from local.tour import run_tour, run_watch_tour

        return run_tour if which is Tour.FLEET else run_watch_tour
    if must_exit:
        raise CommandError("--exit needs the tour, which does not run here", "Leave out --exit.", Exit.USAGE)
    return None


def _policy_words(given: Path | None) -> str:
    if given is not None:
        return str(given)
    return "policy/tour.yaml: timers scaled, so that days pass in seconds"


def _simulated_hosts(text: str, num_gpus: int, state_dir: Path) -> "tuple[LocalHost, ...]":
    from local.hosts import MODELS, simulated_hosts

    models = [word.strip().lower() for word in text.split(",") if word.strip()]
    unknown = sorted(set(models) - set(MODELS))
    if unknown or not models:
        words = f"--hosts names {', '.join(unknown)}" if unknown else "--hosts names none"
        raise CommandError(words, f"There are: {', '.join(MODELS)}; such as --hosts h100,a100.", Exit.USAGE)
    return tuple(simulated_hosts(models, num_gpus, state_dir / "hosts"))


def _real_host(state_dir: Path) -> "tuple[LocalHost, ...]":
    """Return this machine as a host; refuse at once if it has no driver."""
    from agents.host_facts import host_name
    from local.hosts import real_host
    from muster.cli.host.agent import open_probe

    open_probe().close()
    return (real_host(host_name(), state_dir / "hosts"),)
