"""``muster profile``."""

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.framework import profile
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import Done, Listing, Page, changes, reads
from muster.cli.framework.profile import LOCAL, Profile
from muster.cli.framework.tables import Column, Document
from muster.durable import write_durably

if TYPE_CHECKING:
    from muster.documents import Whoami

app = typer.Typer(help="Profiles: which control plane, with which key.", no_args_is_help=True)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def _names() -> list[str]:
    return [LOCAL, *sorted(profile.stored()["profiles"])]


Name = Annotated[str, typer.Argument(help="As `muster profile list` names it.", autocompletion=_names)]
COLUMNS: Final = (
    Column("PROFILE", lambda item: item["name"]),
    Column("IN USE", lambda item: "yes" if item["is_in_use"] else ""),
    Column("API", lambda item: item["api_url"]),
    Column("KEY", lambda item: item["key_file"], only_wide=True),
    Column("OPERATOR KEY", lambda item: item["operator_key_file"], only_wide=True),
    Column("CA", lambda item: item["ca_file"], only_wide=True),
)


@reads(app, "list", example="muster profile list")
def list_profiles() -> Listing:
    """List every profile, and show which one commands use here."""
    found = [] if profile.local_profile() is None else [profile.named_profile(LOCAL)]
    found += [profile.named_profile(name) for name in sorted(profile.stored()["profiles"])]
    used = _used()
    if used is not None and used.name not in {each.name for each in found}:
        found.append(used)
    documents = [_document(each, is_in_use=used is not None and each.name == used.name) for each in found]
    notes = [] if used is None else [f"{used.name} is in use by {used.chosen_by}."]
    return Listing(
        documents, COLUMNS, "No profiles. `muster up` makes a local one, `muster profile add` others.", notes
    )


@reads(app, "show", example="muster profile show prod")
def show(name: Annotated[str | None, typer.Argument(help="By default the one in use.")] = None) -> Page:
    """Show one profile and, if its control plane answers, whose key it holds."""
    found = profile.find_profile() if name is None else profile.named_profile(name)
    document = _document(found, is_in_use=_is_used(found))
    lines = [f"{found.name}  {found.api_url}", f"  key {found.key_file}"]
    if found.operator_key_file is not None:
        lines.append(f"  operator's key {found.operator_key_file}")
    if found.ca_file is not None:
        lines.append(f"  certificates of {found.ca_file}")
    if found.chosen_by:
        lines.append(f"  chosen by {found.chosen_by}")
    return Page(document, lines)


@changes(app, "use", example="muster profile use prod")
def use(name: Name) -> Done:
    """Use a control plane from now on; ``local`` is the stack of the current folder."""
    if name != LOCAL:
        profile.named_profile(name)
    _store(profile.stored() | {"current": name})
    return Done({"current": name}, f"{name} is in use")


@changes(app, "add", example="muster profile add prod --api-url https://muster.example --key-file ~/prod.key")
def add(
    name: Annotated[str, typer.Argument(help="A short name of your own.")],
    api_url: Annotated[str, typer.Option(help="https://…; http:// on loopback alone.")],
    key_file: Annotated[
        Path | None, typer.Option(help="The file with the key; without it the key is asked for, or read from a pipe.")
    ] = None,
    operator_key_file: Annotated[Path | None, typer.Option(help="Another key, for fleet-wide commands.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust, where the system's do not do.")] = None,
    *,
    is_used: Annotated[bool, typer.Option("--use", help="And use it from now on.")] = False,
    is_checked: Annotated[bool, typer.Option("--check/--no-check", help="Ask whose key it is.")] = True,
) -> Done:
    """Name a control plane. A profile of that name is replaced."""
    require_name(name)
    key = prompted_key() if key_file is None else profile.read_key(key_file)
    owner = _owner_words(principal(api_url, key, ca_file)) if is_checked else ""
    document = {
        "api_url": api_url.rstrip("/"),
        "key_file": str(_kept_key(name, key) if key_file is None else key_file.absolute()),
        "operator_key_file": None if operator_key_file is None else str(operator_key_file.absolute()),
        "ca_file": None if ca_file is None else str(ca_file.absolute()),
    }
    known = profile.stored()
    known["profiles"][name] = {field: value for field, value in document.items() if value is not None}
    _store(known | ({"current": name} if is_used else {}))
    advice = "" if is_used else f"; `muster profile use {name}` uses it"
    return Done({"name": name, **document}, f"{name} is added{owner}{advice}")


@changes(app, "remove", example="muster profile remove prod")
def remove(name: Name) -> Done:
    """Remove a profile. Its key stays open: `muster key revoke` closes it."""
    profile.named_profile(name)
    if name == LOCAL:
        raise CommandError("the local stack's profile is in its folder", "Remove .muster/ to remove it.", Exit.USAGE)
    forget(name)
    return Done({"name": name}, f"{name} is forgotten")


def _document(found: Profile, *, is_in_use: bool) -> Document:
    return {
        "name": found.name,
        "api_url": found.api_url,
        "key_file": str(found.key_file),
        "operator_key_file": None if found.operator_key_file is None else str(found.operator_key_file),
        "ca_file": None if found.ca_file is None else str(found.ca_file),
        "is_in_use": is_in_use,
    }


def _used() -> Profile | None:
    try:
        return profile.find_profile()
    except CommandError:
        return None


def _is_used(found: Profile) -> bool:
    used = _used()
    return used is not None and used.name == found.name


def prompted_key() -> str:
    if sys.stdin.isatty():
        import getpass

        key = getpass.getpass("key (mst_…): ").strip()
    else:
        key = sys.stdin.readline().strip()
    if not key.startswith("mst_"):
        raise CommandError("that is no key", "A key begins with mst_; or name its file by --key-file.", Exit.USAGE)
    return key


def principal(api_url: str, key: str, ca_file: Path | None) -> "Whoami":
    """Return the principal of a key, as the control plane knows it."""
    from muster.client.rest import RestClient

    with RestClient(api_url, key, ca_file=ca_file) as client:
        return client.whoami()


def _owner_words(found: "Whoami") -> str:
    return f": {found['name']} ({found['role']})"


def require_name(name: str) -> None:
    """Require a name that a profile may have. Raises ``CommandError``."""
    if _NAME.fullmatch(name) is None or name in {LOCAL, "environment"}:
        words = f"{name!r} cannot be a profile's name"
        raise CommandError(words, "Small letters, digits and . _ -; `local` is the local stack's.", Exit.USAGE)


def store_login(name: str, api_url: str, key: str, ca_file: Path | None) -> Document:
    """Store the key in a file of its own, mode 0600, and the profile, and use it."""
    document = {"api_url": api_url, "key_file": str(_kept_key(name, key))}
    if ca_file is not None:
        document["ca_file"] = str(ca_file.absolute())
    known = profile.stored()
    known["profiles"][name] = document
    _store(known | {"current": name})
    return document


def forget(name: str) -> None:
    """Remove a profile that was added, and its stored key."""
    known = profile.stored()
    del known["profiles"][name]
    kept_key_file(name).unlink(missing_ok=True)
    _store(known | ({"current": LOCAL} if known["current"] == name else {}))


def kept_key_file(name: str) -> Path:
    return profile.file().parent / "keys" / f"{name}.key"


def _kept_key(name: str, key: str) -> Path:
    path = kept_key_file(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_durably(path, key.encode() + b"\n")
    return path


def _store(document: dict[str, Any]) -> None:
    path = profile.file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_durably(path, json.dumps(document, indent=2).encode() + b"\n")
