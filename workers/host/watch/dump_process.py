"""The process that parses flight-recorder dumps: ``RANK:DESCRIPTOR`` for each open file, one line of JSON for each.

A pickle may ask its reader for any amount of memory. So it is read in a process with bounds of its own, and the host's
watch does not depend on it. The process loads the standard library and ``watch`` alone.
"""

import json
import os
import resource
import sys
from collections.abc import Sequence
from typing import Any, Final

from watch.forensics.documents import to_document
from watch.forensics.flight_recorder import read_dump
from watch.forensics.newest import newest_of
from watch.phases import Phase
from watch.reports import HostReport, RankReport

MOST_COLLECTIVES: Final = 64
MOST_FRAMES: Final = 64
_MOST_NOTES: Final = 4
_LONGEST_NOTE: Final = 300
_ADDRESS_BYTES: Final = 1 << 30
_CPU_S: Final = 8


def main(arguments: Sequence[str]) -> None:
    """Read each dump in turn and print its line; what a program wrote may end this process, but no other."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for argument in arguments:
        rank, _, descriptor = argument.partition(":")
        print(json.dumps(_line(int(rank), int(descriptor))), flush=True)  # noqa: T201  # its one output


def _line(rank: int, descriptor: int) -> dict[str, Any]:
    """Return the dump as a host report of one rank, or what is wrong with it as the report's note."""
    try:
        with os.fdopen(descriptor, "rb") as file:
            dump = read_dump(file.read())
    except (OSError, ValueError, MemoryError, RecursionError) as fault:
        why = f"not used: {str(fault) or type(fault).__name__}"
        return to_document(HostReport("", 0, (RankReport(rank, Phase.STEP),), notes=(why[:_LONGEST_NOTE],)))
    found = RankReport(
        rank, Phase.STEP, stack=dump.stack[:MOST_FRAMES], collectives=newest_of(dump.collectives, MOST_COLLECTIVES)
    )
    notes = tuple(note[:_LONGEST_NOTE] for note in dump.notes[:_MOST_NOTES])
    return to_document(HostReport("", 0, (found,), notes=notes))


if __name__ == "__main__":
    main(sys.argv[1:])
