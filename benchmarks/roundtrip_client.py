"""The uploading client of ``benchmarks.roundtrip``, in a process of its own: its CPU is that of an upload alone.

``once MEGABYTES`` prints the CPU of hashing a folder and that of uploading an equal one. ``until MEGABYTES`` uploads
one folder after another until SIGTERM, and ends with the megabytes a second that it reached.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from muster.client.rest import RestClient
from muster.client.uploads import Uploading
from muster.content.read import read_folder

WORDS: Final = "benchmarks.roundtrip_client"
FILE_BYTES: Final = 32 << 20


def main(words: list[str]) -> None:
    url, token, what, megabytes = words
    with tempfile.TemporaryDirectory(prefix="muster-upload-") as name, RestClient(url, token) as client:
        if what == "once":
            once(client, Path(name), int(megabytes) << 20)
        else:
            until_ended(client, Path(name), int(megabytes) << 20)


def once(client: RestClient, folder: Path, num_bytes: int) -> None:
    first, second = fill(folder / "first", num_bytes), fill(folder / "second", num_bytes)
    for path in (first, second):
        for file in path.iterdir():
            file.read_bytes()  # both from memory
    client.whoami()
    began = time.process_time()
    read_folder(first)
    hashed = time.process_time()
    Uploading(client, second, read_folder(second)).run()
    print(hashed - began, time.process_time() - hashed)


def until_ended(client: RestClient, folder: Path, num_bytes: int) -> None:
    """Upload fresh folders. Files are written before the first line is printed, and changed by one byte a chunk."""
    path = fill(folder / "work", num_bytes)
    is_over: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: is_over.append(True))
    done, began = 0, time.monotonic()
    print("begins", flush=True)
    while not is_over:
        change(path, os.urandom(8))
        Uploading(client, path, read_folder(path)).run()
        done += num_bytes
    print(done / (time.monotonic() - began) / 1e6)


def fill(folder: Path, num_bytes: int) -> Path:
    folder.mkdir()
    for number, start in enumerate(range(0, num_bytes, FILE_BYTES)):
        (folder / f"file{number}").write_bytes(os.urandom(min(FILE_BYTES, num_bytes - start)))
    return folder


def change(folder: Path, mark: bytes) -> None:
    """Change each chunk."""
    for file in folder.iterdir():
        with file.open("r+b") as opened:
            for start in range(0, file.stat().st_size, 1 << 20):
                opened.seek(start)
                opened.write(mark)


if __name__ == "__main__":
    main(sys.argv[1:])
