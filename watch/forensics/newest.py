"""The collectives of a rank that a short report keeps: where each group stands, and what was entered before."""

from collections.abc import Sequence
from dataclasses import replace

from watch.reports import COMPLETED, Collective


def newest_of(entries: Sequence[Collective], most: int) -> tuple[Collective, ...]:
    """Return at most ``most`` entries, in their order.

    Of each group, the first that is not completed and the newest are chosen first: NCCL enqueues hundreds behind the
    one that is stuck. The rest are the entries next to the earliest stuck one, since the order before it shows which
    rank left it. Only the newest of a group states its members.
    """
    stuck: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, str], int] = {}
    members: dict[tuple[str, str], tuple[int, ...]] = {}
    for index, entry in enumerate(entries):
        group = (entry.source, entry.group)
        last[group] = index
        members[group] = entry.ranks or members.get(group, ())
        if entry.state not in {COMPLETED, ""} and not entry.is_p2p:
            stuck.setdefault(group, index)
    anchor = min(stuck.values(), default=len(entries) - 1)
    marks = [*sorted(stuck.values()), *sorted(last.values(), reverse=True)]
    nearest = sorted(range(len(entries)), key=lambda index: (abs(index - anchor), index))
    chosen = sorted(list(dict.fromkeys([*marks, *nearest]))[:most])
    newest = {(entries[index].source, entries[index].group): index for index in chosen}
    found = []
    for index in chosen:
        group = (entries[index].source, entries[index].group)
        found.append(replace(entries[index], ranks=members[group] if newest[group] == index else ()))
    return tuple(found)
