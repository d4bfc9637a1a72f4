"""``muster health`` checks whether one of Muster's processes on this machine works, for a container's health check.

It also has the replay of the judgement over recorded reports (``health_replay``).
"""

import socket
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import typer

from muster.cli.framework.exits import CommandError
from muster.cli.gpu.health_replay import replay
from muster.settings import Settings, load_settings

LATE_S: Final = 60.0
TOKEN_LIFE_S: Final = 3600.0
"""Life of an agent's token, which it renews well before: with an older one it has not reached the control plane."""


class Part(StrEnum):
    API = "api"
    SCHEDULER = "scheduler"
    WORKER_CONTROL = "worker-control"
    AGENT = "agent"
    WORKER_HOST = "worker-host"


app = typer.Typer(help="Check the processes of this machine; replay the judgement.", no_args_is_help=True)


def _command(part: Part) -> Callable[[], None]:
    def check() -> None:
        typer.echo(f"{part.value}: {_CHECKS[part](load_settings())}")

    check.__doc__ = f"""Check whether this machine's {part.value} works.

    It uses the settings that the process itself has. Exit code 0: it works; 1: it does not.
    """
    return check


def _api(settings: Settings) -> str:
    """Query the API at its own port, without a check of the certificate, which has another name than loopback."""
    import httpx

    scheme = "http" if settings.api_tls_certificate is None else "https"
    url = f"{scheme}://127.0.0.1:{settings.api_port}/readyz"
    try:
        answer = httpx.get(url, timeout=5, trust_env=False, verify=False)  # noqa: S501  # no secret is sent
    except httpx.HTTPError as error:
        raise CommandError(f"{url} does not answer ({error})") from error
    if answer.status_code != httpx.codes.OK:
        raise CommandError(f"{url} answers {answer.status_code}: {answer.text[:200]}")
    return "ready"


def _scheduler(settings: Settings) -> str:
    _require_connection(settings, "muster-scheduler")
    return "connected"


def _worker_control(settings: Settings) -> str:
    waited_s = _require_connection(settings, "muster-control")
    if waited_s > LATE_S:
        raise CommandError(f"an event has waited {waited_s:.0f} s for its position")
    return "connected, and no event waits"


def _require_connection(settings: Settings, application_name: str) -> float:
    """Return the age of the oldest event. Raises CommandError: no such process of this machine is connected."""
    from control.core.unit_of_work import UnitOfWorkFactory
    from muster.db.engine import make_engine
    from muster.db.queries.liveness import is_connected, oldest_unsequenced_s

    engine = make_engine(str(settings.require("database_url").database_url), application_name="muster-health")
    try:
        with UnitOfWorkFactory(engine).read() as session:
            if not is_connected(session, application_name):
                raise CommandError(f"no {application_name} of this machine is connected to the database")
            return oldest_unsequenced_s(session)
    finally:
        engine.dispose()


def _agent(settings: Settings) -> str:
    from muster.wire.enrolment import AGENT_FOLDER, TOKEN_FILE

    token = settings.state_dir.absolute() / AGENT_FOLDER / TOKEN_FILE
    try:
        age_s = time.time() - token.stat().st_mtime
    except OSError as error:
        raise CommandError(f"the host has not enrolled, or has no token yet ({error})") from error
    if age_s > TOKEN_LIFE_S:
        raise CommandError(f"{token} was last renewed {age_s:.0f} s ago: the control plane was not reached since")
    return f"its token was renewed {age_s:.0f} s ago"


def _worker_host(settings: Settings) -> str:
    wakeup_path = settings.state_dir.absolute() / "wakeup.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        try:
            line.connect(str(wakeup_path))  # nothing is sent: only a living launcher has the other end open
        except OSError as error:
            raise CommandError(f"no launcher listens at {wakeup_path} ({error})") from error
    return f"listens at {wakeup_path}"


_CHECKS: Final[dict[Part, Callable[[Settings], str]]] = {
    Part.API: _api,
    Part.SCHEDULER: _scheduler,
    Part.WORKER_CONTROL: _worker_control,
    Part.AGENT: _agent,
    Part.WORKER_HOST: _worker_host,
}

for _part in Part:
    app.command(_part.value, epilog=f"Example: `muster health {_part.value}`")(_command(_part))
app.command("replay", epilog="Example: `muster health replay reports.jsonl --until 30d`")(replay)
