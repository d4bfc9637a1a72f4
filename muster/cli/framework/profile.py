"""Choice of the control plane and the key.

In this order: ``--profile`` or ``MUSTER_PROFILE``; ``MUSTER_API_URL`` with ``MUSTER_API_KEY_FILE``; the choice of
``muster profile use``; the local stack in ``MUSTER_STATE_DIR``, or found upward from this folder.
"""

import json
import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.places import config_folder

if TYPE_CHECKING:
    from muster.client.rest import RestClient

LOCAL: Final = "local"
"""The name of the local stack's profile, which exists without being added."""
LOCAL_FILE: Final = Path(".muster") / "cli.json"
_BY_VARIABLES: Final = "environment"
_chosen: str | None = None
_is_running = False


@dataclass(frozen=True, slots=True)
class Profile:
    """Control plane and keys. ``operator_key_file``: for fleet-wide commands, if it is another key. ``chosen_by``:
    text.
    """

    api_url: str
    key_file: Path
    operator_key_file: Path | None = None
    tenant_id: str | None = None
    faults_file: Path | None = None
    ca_file: Path | None = None
    name: str = LOCAL
    chosen_by: str = ""
    state_dir: Path | None = None


class NothingNamedError(CommandError):
    """No control plane is named; a command that needs none may continue without one."""


def choose(name: str | None) -> None:
    """Store the name from ``--profile`` or ``MUSTER_PROFILE`` for this process."""
    global _chosen, _is_running  # an option of the root, which every command below reads
    _chosen, _is_running = name or None, True


def is_running() -> bool:
    """Return whether a command runs, whose root has stored its options; otherwise its words are only parsed."""
    return _is_running


def find_profile() -> Profile:
    """Return the profile. Raises ``CommandError`` if no control plane is named, or the named one does not exist."""
    if _chosen is not None:
        return replace(named_profile(_chosen), chosen_by="--profile or MUSTER_PROFILE")
    given = _by_variables()
    if given is not None:
        return given
    current = current_name()
    if current != LOCAL:
        return replace(named_profile(current), chosen_by="`muster profile use`")
    local = local_profile()
    if local is None:
        words = "no control plane is named: no profile, no MUSTER_API_URL with MUSTER_API_KEY_FILE, no local stack"
        advice = "Sign in to one with `muster login https://…`, or start one with `muster up`."
        raise NothingNamedError(words, advice, Exit.USAGE)
    return local


def _by_variables() -> Profile | None:
    """Return the profile of both variables together, or None: the key of one control plane is never sent to another."""
    api_url, key_file = os.environ.get("MUSTER_API_URL"), os.environ.get("MUSTER_API_KEY_FILE")
    if not api_url and not key_file:
        return None
    if not api_url or not key_file:
        missing = "MUSTER_API_KEY_FILE" if api_url else "MUSTER_API_URL"
        words = f"of MUSTER_API_URL and MUSTER_API_KEY_FILE, {missing} is not set"
        raise CommandError(words, "Set both or none: a key belongs to one control plane.", Exit.USAGE)
    ca_file = os.environ.get("MUSTER_API_CA_FILE")
    return Profile(
        api_url.rstrip("/"),
        Path(key_file),
        ca_file=Path(ca_file) if ca_file else None,
        name=_BY_VARIABLES,
        chosen_by="MUSTER_API_URL and MUSTER_API_KEY_FILE",
    )


def local_profile() -> Profile | None:
    """Return the profile of the stack that ``muster up`` runs: of the folder that ``MUSTER_STATE_DIR`` names, else of
    this folder or one above it.
    """
    named = os.environ.get("MUSTER_STATE_DIR")
    nearest = [folder / LOCAL_FILE for folder in (Path.cwd(), *Path.cwd().parents)]
    for path in [*([Path(named) / LOCAL_FILE.name] if named else []), *nearest]:
        document = _mapping_in(path)
        if document is not None:
            return replace(_profile_of(LOCAL, document, path.parent), chosen_by=f"the stack in {path.parent}")
    return None


def words_for_local(state_dir: Path) -> str:
    """Return the words with which the command, typed in this folder, reaches the stack of ``state_dir``."""
    command = Path(sys.argv[0]).absolute()
    here = Path.cwd()
    program = str(command.relative_to(here) if here in command.parents else command)
    if command.name != "muster":
        program = f"{sys.executable} -m muster"
    places = [folder / LOCAL_FILE for folder in (here, *here.parents)]
    own = state_dir / LOCAL_FILE.name
    is_named = bool(os.environ.get("MUSTER_STATE_DIR"))
    is_found = not is_named and own in places and not any(path.exists() for path in places[: places.index(own)])
    variable = "" if is_found else f"MUSTER_STATE_DIR={shlex.quote(str(state_dir))} "
    try:
        is_chosen = _by_variables() is None and current_name() == LOCAL
    except CommandError:
        is_chosen = False
    return f"{variable}{program}{'' if is_chosen else f' --profile {LOCAL}'}"


def named_profile(name: str) -> Profile:
    """Return a profile. Raises ``CommandError`` naming the existing profiles."""
    if name == LOCAL:
        local = local_profile()
        if local is None:
            raise CommandError(
                "there is no local stack in this folder or above it", "`muster up` starts one.", Exit.USAGE
            )
        return local
    document = stored()["profiles"].get(name)
    if document is None:
        there = ", ".join([LOCAL, *sorted(stored()["profiles"])])
        raise CommandError(
            f"there is no profile {name!r}", f"There are: {there}. `muster profile add` adds one.", Exit.USAGE
        )
    return _profile_of(name, document, None)


def current_name() -> str:
    return str(stored()["current"])


def file() -> Path:
    return config_folder() / "profiles.json"


def stored() -> dict[str, Any]:
    """Return ``current`` and ``profiles``: name → document.

    Raises:
        CommandError: the file exists and is not a file of profiles.
    """
    path = file()
    if not path.exists():
        return {"current": LOCAL, "profiles": {}}
    document = _mapping_in(path)
    profiles = None if document is None else document.get("profiles")
    if (
        document is None
        or not isinstance(profiles, dict)
        or not all(isinstance(each, dict) for each in profiles.values())
    ):
        raise CommandError(f"{path} cannot be read as profiles", "Correct or remove it.", Exit.USAGE)
    return {"current": (document or {}).get("current") or LOCAL, "profiles": profiles}


def _mapping_in(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _profile_of(name: str, document: dict[str, Any], state_dir: Path | None) -> Profile:
    """Return the profile of a document. Raises ``CommandError`` if it lacks the address or the key's file."""
    if not document.get("api_url") or not document.get("key_file"):
        raise CommandError(
            f"the profile {name!r} lacks api_url or key_file", "Add it again, or correct its file.", Exit.USAGE
        )

    def path(key: str) -> Path | None:
        return Path(document[key]) if document.get(key) else None

    return Profile(
        str(document["api_url"]),
        Path(document["key_file"]),
        path("operator_key_file"),
        document.get("tenant_id"),
        path("faults_file"),
        path("ca_file"),
        name,
        state_dir=state_dir,
    )


def open_client(*, as_operator: bool = False) -> "RestClient":
    """Return a client with the profile's key, or with its operator key for fleet-wide commands."""
    from muster.client.rest import RestClient

    profile = find_profile()
    path = profile.operator_key_file if as_operator and profile.operator_key_file else profile.key_file
    return RestClient(profile.api_url, read_key(path), ca_file=profile.ca_file)


def read_key(path: Path) -> str:
    """Return the key in a file. Raises ``CommandError`` if it cannot be read or is empty."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"the key file {path} cannot be read ({error})", "Name another key file.", Exit.USAGE
        ) from error
    if not token:
        raise CommandError(f"the key file {path} is empty", "It holds one key, mst_….", Exit.USAGE)
    return token
