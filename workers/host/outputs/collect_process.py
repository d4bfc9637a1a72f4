"""Process that collects the outputs of one part of an attempt, started by the host worker, with which it ends.

It has a low priority, so that ranks and the launcher keep the host's CPUs. It ends with 0 once nothing is left to do.
Its first thread never takes the rights of a job's user: by that one's numbers a process counts as the job's.
"""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec

from muster.client.host import HostClient
from muster.client.key_file import KeyFile
from muster.failpoints import require_known
from workers.host.content.places import SET_ASIDE, WORK
from workers.host.outputs.collecting import Collecting
from workers.host.outputs.setting_aside import collection_of, read_collection

NICE: Final = 10
FAILED: Final = 1
ABANDONED: Final = 3
"""The host worker has ended: the next one continues."""


class CollectOrder(msgspec.Struct, frozen=True, kw_only=True):
    """``place``: name of the folder in ``set_aside``. ``copy_of``: attempt whose outputs are copied first, at ``step``.

    ``api_url``, ``key_file``, ``ca_file``: the control plane's.
    """

    state_dir: str
    place: str
    api_url: str
    key_file: str
    ca_file: str | None = None
    copy_of: str | None = None
    step: int | None = None


def run(order: CollectOrder) -> None:
    state_dir = Path(order.state_dir)
    ca_file = None if order.ca_file is None else Path(order.ca_file)
    place = state_dir / SET_ASIDE / order.place
    with contextlib.closing(HostClient(order.api_url, KeyFile(Path(order.key_file)), ca_file=ca_file)) as client:
        collecting = Collecting(place, client, ca_file)
        if order.copy_of is not None and read_collection(place) is None:
            wanted = collection_of(state_dir / "attempts" / order.copy_of)
            if wanted is None:
                return
            collecting.copy(msgspec.structs.replace(wanted, step=order.step), state_dir / WORK / order.copy_of)
        collecting.run()


def main() -> None:
    """Read the order, a line of standard input; that stays open for as long as the host worker lives."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=CollectOrder)
    require_known()
    codes: list[int] = []

    def work() -> None:
        run(order)
        codes.append(0)

    working = threading.Thread(target=work)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    working.start()
    working.join()
    sys.exit(codes[0] if codes else FAILED)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(ABANDONED)


if __name__ == "__main__":
    main()
