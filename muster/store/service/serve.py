"""The process ``muster store serve``: our own content store for those without an S3-compatible one.

It has its own budget: a low priority, few threads that compute, a bound of connections. So uploads at the
full rate leave the API's processes their cores.
"""

import os
import resource
import threading
from contextlib import suppress
from typing import Final

import structlog

from muster.processes import Loop, run_loops, stop_on_signals
from muster.settings import Settings, SettingsError
from muster.store.key_file import KeyFile
from muster.store.objects import ObjectStore
from muster.store.service.checkpoints import CheckpointFolders
from muster.store.service.disk import FolderInUseError, ObjectFolder
from muster.store.service.gateway import Chunks, FolderChunks, Gateway, StoreChunks
from muster.store.service.handler import Handler
from muster.store.service.server import Server, tls_context

NICE: Final = 10
ENDING_S: Final = 5.0
FILES_PER_CONNECTION: Final = 2
SPARE_FILES: Final = 64
_log = structlog.get_logger(__name__)


def run(settings: Settings) -> None:
    """Serve the store until SIGTERM or SIGINT.

    Raises:
        SettingsError: no usable key file or certificate, another process works in the folder, or the port is taken.
    """
    keys = _keys(settings)
    root = settings.store_dir or settings.state_dir / "store"
    folder = ObjectFolder(root.absolute(), reserve_bytes=settings.store_reserve_bytes)
    stop = stop_on_signals()
    try:
        num_stale = folder.take()
    except (FolderInUseError, OSError) as error:
        raise SettingsError([f"MUSTER_STORE_DIR: {error}"]) from error
    handler = _handler(settings, keys, folder, FolderChunks(folder))
    _log.info("store_starting", folder=str(root), stale_uploads=num_stale, is_full=folder.is_full)
    _serve(settings, handler, stop)


def run_gateway(settings: Settings) -> None:
    """Serve files of folders in front of the S3-compatible store of the settings, until SIGTERM or SIGINT.

    Raises SettingsError: no store is configured, or as ``run``.
    """
    keys, store = _keys(settings), ObjectStore.from_settings(settings)
    if store is None:
        raise SettingsError(["MUSTER_STORE_URL: is needed here and not set"])
    stop = stop_on_signals()
    _log.info("store_gateway_starting", url=settings.store_url)
    _serve(settings, _handler(settings, keys, None, StoreChunks(store)), stop)


def _keys(settings: Settings) -> KeyFile:
    if settings.store_key_file is None:
        raise SettingsError(["MUSTER_STORE_KEY_FILE: is needed here and not set"])
    return KeyFile(settings.store_key_file)


def _handler(settings: Settings, keys: KeyFile, folder: ObjectFolder | None, chunks: Chunks) -> Handler:
    working = threading.Semaphore(max(1, (os.cpu_count() or 2) // 2))
    checkpoints = CheckpointFolders(settings.store_checkpoint_dirs)
    gateway, bucket, region = Gateway(chunks, working), settings.store_bucket, settings.store_region
    return Handler(folder, gateway, keys, bucket, region, working, checkpoints)


def _serve(settings: Settings, handler: Handler, stop: threading.Event) -> None:
    server = _server(settings, handler)
    _allow_files(FILES_PER_CONNECTION * settings.store_connections + SPARE_FILES)
    with suppress(OSError):
        os.nice(NICE)
    _log.info("store_listening", port=server.port)
    run_loops([Loop("accept", server.accept), Loop("sweep", server.sweep)], stop)
    server.close(ENDING_S)


def _allow_files(number: int) -> None:
    """Raise this process's limit of open files, as far as it may: each connection has a socket and a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        allowed = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _server(settings: Settings, handler: Handler) -> Server:
    certificate, key = settings.store_tls_certificate, settings.store_tls_key
    try:
        tls = None if certificate is None or key is None else tls_context(certificate, key)
    except OSError as error:
        raise SettingsError([f"MUSTER_STORE_TLS_CERTIFICATE, MUSTER_STORE_TLS_KEY: {error}"]) from error
    try:
        return Server(
            handler, settings.store_host, settings.store_port, connections=settings.store_connections, tls=tls
        )
    except OSError as error:
        address = f"{settings.store_host}:{settings.store_port}"
        raise SettingsError([f"MUSTER_STORE_HOST, MUSTER_STORE_PORT: {address} cannot be used ({error})"]) from error
