"""``muster doctor`` checks what would keep a first run from working, one line each, with what to do."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import httpx
import typer

from muster.cli.fleet.fleet_findings import Finding, fleet_findings
from muster.cli.framework.exits import CommandError, Exit, exit_of
from muster.cli.framework.output import AsJson, AsYaml, Format, Page, Table, show
from muster.cli.framework.profile import find_profile, open_client
from muster.cli.framework.tables import Column
from muster.client.transport import trusted
from muster.settings import Settings, SettingsError, load_settings

COLUMNS: Final = (
    Column("VERDICT", lambda item: item["verdict"]),
    Column("WHAT", lambda item: item["name"]),
    Column("WORDS", lambda item: item["words"], is_text=True),
)
MAX_SKEW_S: Final = 30.0
STATED_TO_S: Final = 3.0
"""Smallest difference of clocks that counts: the server states its time in whole seconds, read once a second."""


def doctor(
    state_dir: Annotated[Path, typer.Option(help="Where the local stack keeps everything.")] = Path(".muster"),
    *,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
) -> int:
    """Find what is wrong here: settings, control plane, fleet.

    Checks settings, interpreter, torch, state folder, control plane, key and clock. A warning leaves the exit code 0.
    """
    return show(_page(list(findings(state_dir))), Format(as_json=as_json, as_yaml=as_yaml))


def _page(found: list[Finding]) -> Page:
    documents = [{"name": item.name, "verdict": item.verdict, "words": item.words} for item in found]
    said = Table(COLUMNS, documents, indent="", has_header=False)
    return Page(documents, [said], Exit.FAILED if any(item.verdict == "fail" for item in found) else Exit.OK)


def findings(state_dir: Path) -> Iterator[Finding]:
    yield _checked("settings", _settings_words)
    yield Finding("python", "ok", sys.version.split()[0])
    yield _torch()
    yield _checked("state folder", lambda: _writable(state_dir))
    yield from _packages()
    yield from _content_store(state_dir)
    yield from _control_plane()


def _checked(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, "ok", check())
    except Exception as fault:  # noqa: BLE001  # any fault is the finding
        _, words, suggestion = exit_of(fault)
        return Finding(name, "fail", f"{words} {suggestion}".strip())


def _settings_words() -> str:
    load_settings()
    return "every value is usable"


def _torch() -> Finding:
    try:
        python = str(load_settings().job_python or sys.executable)
    except SettingsError:  # a finding of its own
        python = sys.executable
    code = "import importlib.util as u; print(u.find_spec('torch') is not None)"
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  # the operator's own interpreter
    if answer.stdout.strip() == "True":
        return Finding("torch", "ok", f"is there for {python}")
    return Finding("torch", "warn", f"{python} has no torch: jobs under torchrun will fail; `make setup` installs it")


def _packages() -> Iterator[Finding]:
    """Say where the environments of jobs come from, where this machine is a host that has a source of packages."""
    try:
        settings = load_settings()
    except SettingsError:  # a finding of its own
        return
    index, wheelhouse, certificate = settings.package_index, settings.wheelhouse, settings.package_index_ca
    if index is None and wheelhouse is None:
        return
    if wheelhouse is not None and not (wheelhouse.is_dir() and os.access(wheelhouse, os.R_OK | os.X_OK)):
        yield Finding("packages", "fail", f"the wheelhouse {wheelhouse} is no folder that can be read")
    elif certificate is not None and not certificate.is_file():
        yield Finding("packages", "fail", f"the certificates {certificate} of the package index are no file")
    elif importlib.util.find_spec("uv") is None:
        yield Finding("packages", "warn", "there is no uv, which builds environments; install `muster[worker]`")
    else:
        sources = (index, None if wheelhouse is None else f"the wheels in {wheelhouse}")
        yield Finding("packages", "ok", f"environments are built from {' and '.join(filter(None, sources))}")
        yield _source_builds(settings)


def _source_builds(settings: Settings) -> Finding:
    """Say whether source distributions, whose builds run code, are built on this host."""
    if settings.source_builds == "anywhere":
        words = "source distributions are built, also where their code is not cut off (source_builds: anywhere)"
        return Finding("packages", "warn", words)
    if settings.source_builds == "never":
        return Finding("packages", "ok", "no source distributions are built (source_builds: never)")
    if settings.job_uids is None:
        return Finding("packages", "ok", "no source distributions are built: that needs job_uids")
    return Finding("packages", "ok", "source distributions are built, as the job's user and in a network of their own")


def _writable(state_dir: Path) -> str:
    folder = state_dir if state_dir.exists() else state_dir.absolute().parent
    with tempfile.NamedTemporaryFile(dir=folder):
        return f"{folder} can be written"


def _content_store(state_dir: Path) -> Iterator[Finding]:
    """Check the store where this machine is the control plane: by its settings, or as the local stack's."""
    try:
        settings = load_settings()
    except SettingsError:  # a finding of its own
        return
    from muster.store.faults import NOT_CONFIGURED

    url = state_dir / "store.url"
    if settings.store_url is None and settings.store_key_file is None and url.exists():
        given = {"store_url": url.read_text(encoding="ascii"), "store_key_file": state_dir / "store.key"}
        settings = settings.model_copy(update=given)
    if settings.store_url is not None or settings.store_key_file is not None:
        yield _checked("content store", lambda: _store_words(settings))
    elif settings.database_url is not None:
        yield Finding("content store", "warn", NOT_CONFIGURED)


def _store_words(settings: Settings) -> str:
    from muster.store.faults import NOT_CONFIGURED
    from muster.store.objects import ObjectStore

    store = ObjectStore.from_settings(settings)
    if store is None:
        raise CommandError(NOT_CONFIGURED)
    store.check()
    return f"{settings.store_url}, bucket {settings.store_bucket}"


def _control_plane() -> Iterator[Finding]:
    try:
        profile = find_profile()
    except CommandError as fault:
        yield Finding("control plane", "warn", f"{fault} {fault.suggestion}")
        return
    try:
        certificates = trusted(profile.api_url, profile.ca_file)
        answer = httpx.get(f"{profile.api_url}/readyz", timeout=5, trust_env=False, verify=certificates)
    except httpx.HTTPError as error:
        yield Finding("control plane", "fail", f"{profile.api_url} does not answer ({error}); is it up?")
        return
    if answer.status_code != httpx.codes.OK:
        yield Finding("control plane", "fail", f"{profile.api_url} is not ready: {answer.text[:200]}")
        return
    yield Finding("control plane", "ok", f"{profile.api_url}, version {answer.json()['version']}")
    yield _clock(answer)
    yield _checked("key", _key_words)
    yield from fleet_findings()


def _clock(answer: httpx.Response) -> Finding:
    stated = answer.headers.get("date")
    if stated is None:
        return Finding("clock", "warn", "the server says no time")
    skew_s = abs((datetime.now(UTC) - parsedate_to_datetime(stated)).total_seconds())
    verdict: Literal["ok", "warn"] = "ok" if skew_s <= MAX_SKEW_S else "warn"
    words = "agrees with the server's" if skew_s <= STATED_TO_S else f"{skew_s:.0f} s from the server's"
    return Finding("clock", verdict, words)


def _key_words() -> str:
    with open_client() as client:
        who = client.whoami()
    return f"{who['name']} ({who['role']})"
