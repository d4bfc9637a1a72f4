"""``muster login``, ``logout`` and ``whoami``: a key for this machine, by a key's text or by the console's session."""

import getpass
import platform
import re
import sys
import time
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from muster.cli.framework import profile, profiles
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import AsJson, AsYaml, Done, Format, Page, moment_of, show

if TYPE_CHECKING:
    from muster import documents
    from muster.client.rest import RestClient

PATIENCE_S: Final = 600.0
"""Longest wait for a person, whatever the server's clock says."""
_UNFIT: Final = re.compile(r"[^a-z0-9._-]+")
_TRIED_AGAIN: Final = frozenset({408, 429, 502, 503, 504})
Address = Annotated[
    str | None,
    typer.Argument(metavar="[URL]", help="The control plane, https://…; by default the one of the profile in use."),
]


def login(
    api_url: Address = None,
    *,
    is_by_key: Annotated[
        bool, typer.Option("--with-key", help="With a key: it is asked for, or read from a pipe.")
    ] = False,
    key_file: Annotated[Path | None, typer.Option(help="With the key in this file, which is copied.")] = None,
    name: Annotated[str | None, typer.Option("--as", help="Name of the profile; by default the host's name.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust, where the system's do not do.")] = None,
    opens_browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page of the console here.")
    ] = True,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
) -> int:
    """Sign in to a control plane: confirm a code in the console, or give a key.

    The key is stored in a file of your own, and the profile is in use from then on.
    """
    shape = Format(as_json, as_yaml)
    address = _address(api_url)
    name = _profile_name(name, address)
    before = _stored_key(name, address)
    if key_file is not None:
        key = profile.read_key(key_file)
    elif is_by_key:
        key = profiles.prompted_key()
    else:
        key = _key_by_console(address, ca_file, opens_browser=opens_browser)
    who = profiles.principal(address, key, ca_file)
    document = profiles.store_login(name, address, key, ca_file)
    if before is not None and before != key:
        _revoke(address, before, ca_file)
    words = f"signed in to {address} as {who['name']} ({who['role']}); the profile {name} is in use"
    return show(Done({"name": name, **document, "principal": dict(who)}, words), shape)


def logout(
    name: Annotated[str | None, typer.Argument(metavar="[PROFILE]", help="By default the one in use.")] = None,
    *,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
) -> int:
    """Sign out: revoke the key that `muster login` got, and forget the profile. A key that you gave stays open."""
    shape = Format(as_json, as_yaml)
    found = profile.find_profile() if name is None else profile.named_profile(name)
    if found.name not in profile.stored()["profiles"]:
        advice = "Remove its key's file, or unset MUSTER_API_URL and MUSTER_API_KEY_FILE."
        raise CommandError(f"{found.name} is no profile of `muster login`", advice, Exit.USAGE)
    is_revoked = _revoke(found.api_url, profile.read_key(found.key_file), found.ca_file)
    profiles.forget(found.name)
    rest = "its key is revoked" if is_revoked else "its key stays open: `muster key revoke` closes it"
    return show(Done({"name": found.name, "is_revoked": is_revoked}, f"signed out of {found.api_url}; {rest}"), shape)


def whoami(*, as_json: AsJson = False, as_yaml: AsYaml = False) -> int:
    """Show the control plane in use, the principal of its key, and the permissions of its role."""
    shape = Format(as_json, as_yaml)
    found = profile.find_profile()
    with profile.open_client() as client:
        who = client.whoami()
    tenant = f" of {who['tenant_id']}" if who["tenant_id"] else ""
    lines = [
        f"{who['name']} ({who['role']}){tenant}",
        f"  at {found.api_url}, by the profile {found.name}, chosen by {found.chosen_by}",
        f"  may {', '.join(who['permissions'])}",
    ]
    return show(Page({"profile": found.name, "api_url": found.api_url, **who}, lines), shape)


def _key_by_console(address: str, ca_file: Path | None, *, opens_browser: bool) -> str:
    """Return the key that a person confirmed in the console. Raises ``CommandError`` if none did in time."""
    from muster.client.rest import RestClient

    with RestClient(address, "", ca_file=ca_file) as client:
        started = _begun(client, address)
        page = f"{address}/console/login?code={started['code']}"
        typer.echo(f"Open {page}", err=True)
        typer.echo(f"and confirm the code {started['code']} until {moment_of(started['expires_at'])}.", err=True)
        if opens_browser and sys.stderr.isatty():
            with suppress(webbrowser.Error, OSError):
                webbrowser.open(page)
        return _awaited(client, started["login_token"], started["interval_s"])


def _begun(client: "RestClient", address: str) -> "documents.StartedLogin":
    """Return the new code. Raises ``CommandError``: the control plane is of a release without this sign-in."""
    from muster.client.transport import Problem

    try:
        return client.begin_login(_device())
    except Problem as problem:
        if problem.status not in {404, 405}:
            raise
        words = f"the control plane at {address} has no sign-in by the console"
        raise CommandError(words, "Give a key: muster login --with-key, or --key-file PATH.", Exit.NOT_FOUND) from None


def _awaited(client: "RestClient", login_token: str, interval_s: float) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(max(0.1, interval_s))
        answer = _answer_to(client, login_token)
        if answer["token"] is not None:
            return str(answer["token"])
        if answer["state"] == "denied":
            raise CommandError("the sign-in was denied in the console", code=Exit.DENIED)
        if answer["state"] != "pending":
            break
    raise CommandError("the code was not confirmed in time", "Type `muster login` again.", Exit.DENIED)


def _answer_to(client: "RestClient", login_token: str) -> Mapping[str, Any]:
    """Return the answer; a server that does not answer now is asked again, until the code is over."""
    from muster.client.transport import Problem, UnreachableError

    try:
        return client.login_answer(login_token)
    except UnreachableError:
        return {"state": "pending", "token": None}
    except Problem as problem:
        if problem.status not in _TRIED_AGAIN:
            raise
        time.sleep(problem.retry_after_s or 0.0)
        return {"state": "pending", "token": None}


def _address(api_url: str | None) -> str:
    text = profile.find_profile().api_url if api_url is None else api_url
    address = text if "://" in text else f"https://{text}"
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise CommandError(f"{text!r} is no address of a control plane", "Such as https://muster.example.", Exit.USAGE)
    return address.rstrip("/")


def _profile_name(name: str | None, address: str) -> str:
    """Return the profile's name. Raises ``CommandError`` if it names another control plane already."""
    if name is None:
        name = _UNFIT.sub("-", urlsplit(address).netloc.rpartition("@")[2].lower()).strip("-.")[:63]
    profiles.require_name(name)
    known = profile.stored()["profiles"].get(name)
    if known is not None and known.get("api_url") != address:
        words = f"the profile {name} is of {known.get('api_url')}"
        raise CommandError(words, "Name another by --as, or remove it: `muster profile remove`.", Exit.USAGE)
    return name


def _stored_key(name: str, address: str) -> str | None:
    """Return the key that an earlier sign-in stored, which the new one replaces."""
    known = profile.stored()["profiles"].get(name)
    if known is None or known.get("api_url") != address or known.get("key_file") != str(profiles.kept_key_file(name)):
        return None
    with suppress(CommandError):
        return profile.read_key(profiles.kept_key_file(name))
    return None


def _revoke(address: str, key: str, ca_file: Path | None) -> bool:
    """Revoke a key that a sign-in made, and return whether it was one. A key that opens nothing is no fault."""
    from muster.client.rest import RestClient
    from muster.client.transport import Problem

    try:
        with RestClient(address, key, ca_file=ca_file) as client:
            return client.sign_out()["is_revoked"]
    except Problem as problem:
        if problem.status not in {401, 404}:
            raise
        return problem.status == 401


def _device() -> str:
    """Return the person and the machine, as the page of the console shows them."""
    try:
        person = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no name of the user is known
        person = "someone"
    text = f"{person} on {platform.node() or 'an unnamed machine'} ({platform.system()})"
    return "".join(each for each in text if each.isprintable())[:128]
