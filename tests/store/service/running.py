"""Our service within the process of a test, so that a test may set its times and its disk."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.store.key_file import KeyFile, make_key_file
from muster.store.service.checkpoints import CheckpointFolders
from muster.store.service.disk import ObjectFolder
from muster.store.service.gateway import FolderChunks, Gateway
from muster.store.service.handler import Handler
from muster.store.service.server import Server
from tests.store.stores import BUCKET, Store


@contextmanager
def running(folder: Path, *, connections: int = 16, reserve_bytes: int = 0) -> Iterator[Store]:
    """Serve until the end of the block."""
    make_key_file(folder / "store.key")
    objects = ObjectFolder(folder / "store", reserve_bytes=reserve_bytes)
    objects.take()
    working = threading.Semaphore(1)
    gateway = Gateway(FolderChunks(objects), working)
    handler = Handler(
        objects, gateway, KeyFile(folder / "store.key"), BUCKET, "us-east-1", working, CheckpointFolders(())
    )
    server = Server(handler, "127.0.0.1", 0, connections=connections)
    stop = threading.Event()
    loops = [threading.Thread(target=loop, args=(stop,)) for loop in (server.accept, server.sweep)]
    store = Store(f"http://127.0.0.1:{server.port}", folder)
    for loop in loops:
        loop.start()
    try:
        yield store
    finally:
        store.client.close()
        stop.set()
        for loop in loops:
            loop.join()
        server.close(10.0)
