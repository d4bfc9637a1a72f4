"""``muster support-bundle`` writes one zip file with all that support needs, and no secret of this machine."""

import json
import os
import platform
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster import __version__
from muster.cli.fleet.doctor import findings
from muster.cli.framework.exits import CommandError, Exit, exit_of
from muster.cli.framework.output import AsJson, Done, Format, show
from muster.cli.framework.profile import Profile, find_profile, open_client
from muster.cli.framework.progress import progress
from muster.cli.framework.redaction import Redaction, secrets_in, secrets_of_file, secrets_of_url

if TYPE_CHECKING:
    from muster.client.rest import RestClient

TAIL_BYTES: Final = 256 * 1024
NUM_EVENTS: Final = 500
_PACKAGES: Final = (
    "fastapi",
    "httpx",
    "msgspec",
    "psycopg",
    "pydantic",
    "rich",
    "sqlalchemy",
    "torch",
    "typer",
    "uvicorn",
)


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the bundle: its name, and the function that makes its content (a document, or text)."""

    name: str
    make: Callable[[], Any]


def support_bundle(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The zip file; by default named by the time, here.")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="A stack's state folder with its logs; by default the local stack's.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> int:
    """Everything that support asks for, without secrets.

    Versions, settings, the doctor's findings, the fleet, recent events, figures and the tails of logs. Keys, tokens and
    passwords are struck out, by their shape and by the content of this machine's own secret files.
    """
    path = output or Path(f"muster-support-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip")
    if path.exists():
        raise CommandError(f"{path} is there already", "Name another file by --output.", Exit.USAGE)
    profile = _profile()
    folder = state_dir or (profile.state_dir if profile is not None else None)
    redaction = Redaction(_secrets(profile, folder))
    missing = _write(path, list(_parts(profile, folder)), redaction)
    document = {"path": str(path.absolute()), "bytes": path.stat().st_size, "missing": missing}
    note = "".join(f"not in it: {name}: {why}\n" for name, why in missing.items())
    words = f"{path} ({path.stat().st_size / 1024:.0f} KiB); look into it before you send it: `unzip -l {path}`"
    return show(Done(document, words, note.rstrip()), Format(as_json=as_json))


def _write(path: Path, parts: list[Part], redaction: Redaction) -> dict[str, str]:
    """Write the bundle and return, by name, why a part is missing.

    An incomplete bundle has another name, and is removed after a fault.
    """
    draft = path.with_name(path.name + ".part")
    missing: dict[str, str] = {}
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle,
            progress("support bundle", has_lines=False) as bar,
        ):
            for number, part in enumerate(parts):
                bar.report(part.name, number, len(parts))
                try:
                    bundle.writestr(part.name, _content(part.make(), redaction))
                except Exception as fault:  # noqa: BLE001  # a part that fails is named in missing.json, and the rest is there
                    missing[part.name] = redaction.text(exit_of(fault)[1])
            bundle.writestr("missing.json", _content(missing, redaction))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return missing


def _content(made: Any, redaction: Redaction) -> str:
    if isinstance(made, str):
        return redaction.text(made)
    return json.dumps(redaction.document(made), indent=2, ensure_ascii=False) + "\n"


def _parts(profile: Profile | None, folder: Path | None) -> Iterator[Part]:
    yield Part("versions.json", _versions)
    yield Part("settings.json", _settings)
    yield Part("doctor.json", lambda: [_finding(each) for each in findings(folder or Path(".muster"))])
    if profile is not None:
        yield Part("profile.json", lambda: {"api_url": profile.api_url, "name": profile.name, "by": profile.chosen_by})
        for name, ask in _COLLECTED.items():
            yield Part(name, partial(_answer_of, ask))
    if folder is not None:
        for log in sorted((folder / "logs").glob("*.log")):
            yield Part(f"logs/{log.name}", partial(_tail, log))


def _finding(each: Any) -> dict[str, str]:
    return {"name": each.name, "verdict": each.verdict, "words": each.words}


def _answer_of(ask: "Callable[[RestClient], Any]") -> Any:
    with open_client(as_operator=True) as client:
        return ask(client)


def _newest_events(client: "RestClient") -> list[Any]:
    return list(islice(client.newest_events(limit=200), NUM_EVENTS))[::-1]


_COLLECTED: Final[dict[str, "Callable[[RestClient], Any]"]] = {
    "whoami.json": lambda client: client.whoami(),
    "figures.txt": lambda client: client.figures(),
    "nodes.json": lambda client: client.nodes(),
    "gpus.json": lambda client: client.gpus(),
    "incidents.json": lambda client: list(islice(client.incidents(limit=200), 200)),
    "breakers.json": lambda client: client.breakers(),
    "cordons.json": lambda client: client.cordons(),
    "reclaims.json": lambda client: list(islice(client.reclaims(limit=200), 200)),
    "events.json": _newest_events,
}


def _versions() -> dict[str, Any]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {
        "muster": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "num_cpus": os.cpu_count(),
        "packages": found,
    }


def _settings() -> dict[str, Any]:
    """Return the settings as this command read them, and the names of Muster's variables in the environment."""
    from muster.settings import PREFIX, load_settings

    values = load_settings().model_dump(mode="json")
    return {"values": values, "set_by_environment": sorted(name for name in os.environ if name.startswith(PREFIX))}


def _tail(path: Path) -> str:
    """Return whole lines of a file's end: no rule would strike out half a secret."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    return text if size <= TAIL_BYTES else text.partition("\n")[2]


def _profile() -> Profile | None:
    """Return the profile, or None if no control plane is named: a bundle of this machine alone is useful too."""
    try:
        return find_profile()
    except CommandError:
        return None


def _secrets(profile: Profile | None, folder: Path | None) -> Iterator[str]:
    """Yield every secret that this machine knows of."""
    for path in (None, None) if profile is None else (profile.key_file, profile.operator_key_file):
        if path is not None:
            yield from secrets_of_file(path)
    if folder is not None:
        yield from secrets_in(folder)
    for name, value in os.environ.items():
        if name.startswith("MUSTER_") and name.endswith("_FILE"):
            yield from secrets_of_file(Path(value))
        elif name.startswith("MUSTER_") and (name.endswith("_KEY") or "TOKEN" in name or "SECRET" in name):
            yield value
        yield from secrets_of_url(value)
