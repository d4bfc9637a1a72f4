"""A plain copy of a folder's chunks by signed addresses, in a process as a host's fetch is: nothing is checked or kept.

It reads lines of an address, a path and a tab between them. The chunks of a path come in their order.
"""

import http.client
import os
import shutil
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from workers.host.content.fetch_process import NICE

WORDS: Final = "benchmarks.roundtrip_copy"
_PIECE_BYTES: Final = 1 << 20


def main(root: Path) -> None:
    os.nice(NICE)  # as a host's own fetch
    line: http.client.HTTPConnection | None = None
    for words in sys.stdin:
        url, path = words.rstrip("\n").split("\t")
        parts = urlsplit(url)
        line = line or http.client.HTTPConnection(parts.netloc)
        line.request("GET", f"{parts.path}?{parts.query}")
        answer = line.getresponse()
        if answer.status != http.client.OK:
            sys.exit(f"the store answers {answer.status}")
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            shutil.copyfileobj(answer, file, _PIECE_BYTES)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
