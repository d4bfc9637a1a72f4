"""The newest collectives of this rank, by torch's own recorder and by the runtime's count of its agreements."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from muster.train.watch.activity import Activity

MOST_ENTRIES: Final = 64
"""The newest of all groups together: enough for the order of several steps."""
MOST_GROUPS: Final = 32
"""Groups whose newest entry is reported, however old it is."""
MOST_RANKS: Final = 64
_MOST_SIZES: Final = 8
_LONGEST_TEXT: Final = 100
OWN_GROUP: Final = "muster"


def newest(activity: Activity) -> list[dict[str, Any]]:
    """Return the newest ones in the order in which the rank entered them.

    Never raises: the recorder is no public part of torch. Without it there is the runtime's own count.
    """
    try:
        found = _recorded()
    except Exception:  # noqa: BLE001  # no group, or another version of torch: then there are none
        found = []
    if activity.agreements and not found:
        found.append(
            {
                "group": OWN_GROUP,
                "sequence": activity.agreements,
                "operation": activity.last_agreement,
                "state": "scheduled" if activity.is_agreeing else "completed",
                "source": OWN_GROUP,
            }
        )
    return found


def _recorded() -> list[dict[str, Any]]:
    c10d: Any = sys.modules["torch._C._distributed_c10d"]  # never an import here: it would take seconds
    entries = json.loads(c10d._dump_fr_trace_json(True, False)).get("entries", ())  # noqa: SLF001  # the only one
    members = _members()
    chosen: list[dict[str, Any]] = []
    groups: set[str] = set()
    for number, entry in enumerate(reversed(entries)):
        name = str((entry.get("process_group") or [""])[0])
        is_first = name not in groups and len(groups) < MOST_GROUPS
        if is_first:
            groups.add(name)
        if is_first or number < MOST_ENTRIES:
            chosen.append(_document(name, entry, members.get(name, []) if is_first else []))
    return chosen[::-1]


def _members() -> dict[str, list[int]]:
    """Return the ranks of each group by its name; gloo's recorder does not list them."""
    world: Any = sys.modules["torch.distributed.distributed_c10d"]._world  # noqa: SLF001  # the only list
    return {str(name): sorted(world.pg_group_ranks[group])[:MOST_RANKS] for group, name in world.pg_names.items()}


def _document(group: str, entry: dict[str, Any], ranks: list[int]) -> dict[str, Any]:
    name = str(entry.get("profiling_name", ""))
    sizes = (entry.get("input_sizes") or [[]])[0]
    is_p2p = bool(entry.get("is_p2p"))
    return {
        "group": group[:_LONGEST_TEXT],
        "sequence": int(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id") or 0),
        "operation": name.rpartition(":")[2][:_LONGEST_TEXT],
        "sizes": [int(size) for size in sizes[:_MOST_SIZES]],
        "dtype": str((entry.get("input_dtypes") or [""])[0])[:_LONGEST_TEXT],
        "state": "completed" if entry.get("retired") else str(entry.get("state", ""))[:_LONGEST_TEXT],
        "ranks": ranks,
        "source": "flight_recorder",
        "is_p2p": is_p2p,
        "description": str((entry.get("process_group") or ["", ""])[1])[:_LONGEST_TEXT],
    }
