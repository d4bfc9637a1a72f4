"""What a host reports to the control plane of outputs that it could not collect: events on the job's timeline."""

import random
import time
from collections.abc import Callable
from typing import Any, Final

from muster.client.host import HostClient
from muster.client.transport import Problem, UnreachableError
from muster.wire.content import OutputsNote
from muster.wire.host import PROTOCOL_VERSION
from workers.host.outputs.tree import LeftOut
from workers.host.training_relay import is_of_the_moment

_MOST_WORDS: Final = 500
_MOST_PATH: Final = 4096
_LONGEST_PAUSE_S: Final = 30.0
_NO_ROUTE: Final = 404


def fields_of(found: str, words: str, left_out: LeftOut | None = None) -> dict[str, Any]:
    """Return the fields of a note."""
    line = " ".join(words.split()).replace("\0", " ")[:_MOST_WORDS]
    paths = () if left_out is None else tuple(path[:_MOST_PATH] for path in left_out.paths)
    return {"found": found, "words": line, "num_paths": 0 if left_out is None else left_out.count, "paths": paths}


def note_of(fence: int, step: int | None, fields: dict[str, Any]) -> OutputsNote:
    return OutputsNote(protocol=PROTOCOL_VERSION, fence=fence, step=step, **fields)


def report_once(client: HostClient, attempt_id: str, note: OutputsNote) -> bool:
    """Report it. Return whether that is over: stored, or refused. Twice is the same as once."""
    try:
        client.note_outputs(attempt_id, note)
    except UnreachableError:
        return False
    except Problem as fault:
        return not is_of_the_moment(fault) and fault.status != _NO_ROUTE
    return True


def report(client: HostClient, attempt_id: str, note: OutputsNote, pause: Callable[[float], None] = time.sleep) -> None:
    """Report it, for as long as the control plane does not answer."""
    pause_s = 0.5
    while not report_once(client, attempt_id, note):
        pause(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads hosts, keeps no secret
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
