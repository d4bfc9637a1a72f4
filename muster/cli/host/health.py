"""``muster health`` checks whether one of Muster's processes on this machine works, for a container's health check.

It also has the replay of the judgement over recorded reports. A check runs every few seconds, so it loads nothing of
the replay, nor the models of the database.
"""

import socket
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from muster.cli.framework.exits import CommandError
from muster.cli.framework.output import AsJson
from muster.domain.states import Standing
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
    STORE = "store"


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
    scheme = "http" if settings.api_tls_certificate is None else "https"
    _answer_of(f"{scheme}://127.0.0.1:{settings.api_port}/readyz")
    return "ready"


def _store(settings: Settings) -> str:
    """Query our own content store at its port, as the API. A full one works: it serves what it has."""
    scheme = "http" if settings.store_tls_certificate is None else "https"
    words = _answer_of(f"{scheme}://127.0.0.1:{settings.store_port}/healthz")
    return "ready" if words == "ok" else "ready, but its disk is full: it refuses uploads"


def _answer_of(url: str) -> str:
    import httpx

    try:
        answer = httpx.get(url, timeout=5, trust_env=False, verify=False)  # noqa: S501  # no secret is sent
    except httpx.HTTPError as error:
        raise CommandError(f"{url} does not answer ({error})") from error
    if answer.status_code != httpx.codes.OK:
        raise CommandError(f"{url} answers {answer.status_code}: {answer.text[:200]}")
    return answer.text.strip()


def _scheduler(settings: Settings) -> str:
    oldest_s, _ = _require_progress(settings, Part.SCHEDULER, "muster-scheduler")
    return f"its loop advanced {oldest_s:.0f} s ago"


def _worker_control(settings: Settings) -> str:
    oldest_s, waited_s = _require_progress(settings, Part.WORKER_CONTROL, "muster-control")
    if waited_s > LATE_S:
        raise CommandError(f"an event has waited {waited_s:.0f} s for its position")
    return f"each of its loops advanced in the last {oldest_s:.0f} s, and no event waits"


def _require_progress(settings: Settings, part: Part, application_name: str) -> tuple[float, float]:
    """Return the greatest age of its loops' progress, and the age of the oldest event.

    Raises CommandError: no such process of this machine is connected or has reported, or a loop of it stands still.
    """
    from muster.db.engine import make_engine
    from muster.db.errors import translated_errors
    from muster.db.queries.liveness import is_connected, loops_of, oldest_unsequenced_s

    engine = make_engine(str(settings.require("database_url").database_url), application_name="muster-health")
    try:
        with translated_errors(), engine.connect() as connection:
            if not is_connected(connection, application_name):
                raise CommandError(f"no {application_name} of this machine is connected to the database")
            ages = loops_of(connection, part.value, socket.gethostname())
            waited_s = oldest_unsequenced_s(connection)
    finally:
        engine.dispose()
    if not ages:
        raise CommandError(f"no {part.value} of this machine has reported its progress")
    stalled = [f"{loop} for {age_s:.0f} s" for loop, (age_s, limit_s) in ages.items() if age_s > limit_s]
    if stalled:
        raise CommandError(f"these loops have not advanced: {', '.join(stalled)}")
    return max(age_s for age_s, _ in ages.values()), waited_s


def _agent(settings: Settings) -> str:
    from muster.wire.enrolment import AGENT_FOLDER, PROGRESS_FILE, TOKEN_FILE

    folder = settings.state_dir.absolute() / AGENT_FOLDER
    token = folder / TOKEN_FILE
    try:
        age_s = time.time() - token.stat().st_mtime
    except OSError as error:
        raise CommandError(f"the host has not enrolled, or has no token yet ({error})") from error
    if age_s > TOKEN_LIFE_S:
        raise CommandError(f"{token} was last renewed {age_s:.0f} s ago: the control plane was not reached since")
    _require_mark(folder / PROGRESS_FILE, "the agent")
    return f"its loops advance; its token was renewed {age_s:.0f} s ago"


def _require_mark(path: Path, process: str) -> None:
    """Raise CommandError: the process has never marked its progress, or not recently."""
    from muster.progress_file import marked_s_ago

    age_s = marked_s_ago(path)
    if age_s is None:
        raise CommandError(f"{process} has not marked its progress in {path}")
    if age_s > LATE_S:
        raise CommandError(
            f"{process} has not marked its progress for {age_s:.0f} s: it has ended, or its log names a loop that "
            "stands still"
        )


def _worker_host(settings: Settings) -> str:
    from workers.host.progress import PROGRESS_FILE

    wakeup_path = settings.state_dir.absolute() / "wakeup.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        try:
            line.connect(str(wakeup_path))  # nothing is sent: only a living launcher has the other end open
        except OSError as error:
            raise CommandError(f"no launcher listens at {wakeup_path} ({error})") from error
    _require_mark(settings.state_dir.absolute() / PROGRESS_FILE, "the launcher")
    return f"its loops advance, and it listens at {wakeup_path}"


_CHECKS: Final[dict[Part, Callable[[Settings], str]]] = {
    Part.API: _api,
    Part.SCHEDULER: _scheduler,
    Part.WORKER_CONTROL: _worker_control,
    Part.AGENT: _agent,
    Part.WORKER_HOST: _worker_host,
    Part.STORE: _store,
}

for _part in Part:
    app.command(_part.value, epilog=f"Example: `muster health {_part.value}`")(_command(_part))


@app.command("replay", epilog="Example: `muster health replay reports.jsonl --until 30d`")
def replay(
    file: Annotated[Path, typer.Argument(help="Records, one JSON object a line; - for stdin.", allow_dash=True)],
    policy: Annotated[Path | None, typer.Option(help="A policy document instead of the built-in one.")] = None,
    standing: Annotated[Standing, typer.Option(help="Of a GPU that no record places.")] = Standing.HEALTHY,
    until: Annotated[
        str | None, typer.Option(help="Let time pass until then after the last record: 30d, 12h, 90m.")
    ] = None,
    fleet: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000_000, help="GPUs of the fleet that the records are a part of, for the breaker's caps."
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> int:
    """Replay reports and events into evidence, scores and transitions: by the rules of production, without a server.

    A record is a report as agents send it with its `node_id`, an event of one, or a line with a `type`, such as `muster
    node export` writes: docs/operator/replay.md shows them. Readings that are no numbers are set aside and counted.
    Other bad input ends the replay with the number of its line; the results before it are shown.
    """
    from muster.cli.gpu import health_replay

    return health_replay.replay(file, policy, standing, until, fleet, as_json=as_json)
