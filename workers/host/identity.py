"""Identity of this launcher's node: the given one, else the one of the enrolled agent of this host."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from muster.processes import state_waiting
from muster.settings import Settings
from muster.wire.enrolment import AGENT_FOLDER, NODE_FILE, TOKEN_FILE

_POLL_S: Final = 0.25
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """Identity of a host. ``key_file``: the node's key or the token that the agent renews."""

    node_id: str
    key_file: Path


class _Enrolled(msgspec.Struct, frozen=True):
    node_id: str


def host_identity(settings: Settings, node_id: str | None, stop: threading.Event) -> HostIdentity | None:
    """Return the identity, after the agent in the same state folder has enrolled; None: stopped before that."""
    agent = settings.state_dir.absolute() / AGENT_FOLDER
    is_said = False
    while not stop.is_set():
        found = node_id or _enrolled_as(agent / NODE_FILE)
        key_file = settings.api_key_file or agent / TOKEN_FILE
        if found is not None and (settings.api_key_file is not None or key_file.exists()):
            return HostIdentity(found, key_file)
        if not is_said:
            _log.info("waiting_for_enrolment", identity=str(agent / NODE_FILE), key=str(key_file))
            is_said = True
        state_waiting("waits until this host's agent has enrolled")
        stop.wait(_POLL_S)
    return None


def _enrolled_as(path: Path) -> str | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Enrolled).node_id
    except (OSError, msgspec.MsgspecError):
        return None
