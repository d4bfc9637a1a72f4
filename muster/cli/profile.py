"""Where the control plane is and with which key: environment first, then the local stack found upward from here."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster.cli.exits import CommandError, Exit
from muster.client.rest import RestClient

PROFILE_FILE: Final = Path(".muster") / "cli.json"


@dataclass(frozen=True, slots=True)
class Profile:
    api_url: str
    key_file: Path
    operator_key_file: Path | None = None
    tenant_id: str | None = None
    faults_file: Path | None = None


def find_profile(api_url: str | None = None) -> Profile:
    """Raises ``CommandError`` when nothing says where to go."""
    api_url = api_url or os.environ.get("MUSTER_API_URL")
    key_file = os.environ.get("MUSTER_API_KEY_FILE")
    local = _local_profile()
    if api_url and key_file:
        return Profile(api_url, Path(key_file))  # some other control plane: nothing of it is simulated here
    if local is None:
        words = "no control plane is named: neither MUSTER_API_URL with MUSTER_API_KEY_FILE, nor a local stack"
        raise CommandError(words, "Start one with `muster up`, or set both variables.", Exit.USAGE)
    operator = local.get("operator_key_file")
    return Profile(
        api_url or str(local["api_url"]),
        Path(key_file or local["key_file"]),
        Path(operator) if operator else None,
        local.get("tenant_id"),
        Path(local["faults_file"]) if local.get("faults_file") else None,
    )


def _local_profile() -> dict[str, Any] | None:
    for folder in (Path.cwd(), *Path.cwd().parents):
        try:
            document = json.loads((folder / PROFILE_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(document, dict):
            return document
    return None


def open_client(*, as_operator: bool = False) -> RestClient:
    """A client with the tenant's key, or with the local stack's operator key for fleet-wide commands."""
    profile = find_profile()
    path = profile.operator_key_file if as_operator and profile.operator_key_file else profile.key_file
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"the key file {path} cannot be read ({error})", "", Exit.USAGE) from error
    ca_file = os.environ.get("MUSTER_API_CA_FILE")
    return RestClient(profile.api_url, token, ca_file=Path(ca_file) if ca_file else None)
