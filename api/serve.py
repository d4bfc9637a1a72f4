"""The process ``muster api``: uvicorn over the application, with TLS when given a certificate."""

import gc
import logging
import sys
import threading
from contextlib import suppress
from typing import Any, Final

import structlog
import uvicorn
import uvloop
from starlette.datastructures import State
from starlette.types import ASGIApp

from api.app import Extension, create_app
from api.connection_bounds import CLOSING_S, Bounds, Connections, allowed_connections, bounded
from api.dependencies import AppDependencies
from api.figures import DatabaseFigures
from api.host_threads import HOST_THREADS
from api.middleware import HOST_BODY_BYTES
from control.attempts.reconcile import HEARTBEAT, beat
from control.core.unit_of_work import UnitOfWorkFactory
from control.policy.policies import limits_at_start
from control.secrets.key_file import FileKeys
from control.secrets.key_wrapping import KeyWrapper
from control.secrets.settings_keys import keys_of_settings
from control.system.liveness import Reporter
from muster import service_manager
from muster.domain.errors import SecretKeyError
from muster.domain.loopback import is_loopback
from muster.domain.policy.limits import LimitPolicy
from muster.domain.principals import system_principal
from muster.processes import Loop, Watched, reporter, start_loop, watch_until
from muster.settings import Settings, SettingsError
from muster.store.objects import ObjectStore

BEAT_S: Final = 5.0
KEEP_ALIVE_S: Final = 60
WORKER_THREADS: Final = 40
HANDSHAKE_S: Final = 10.0
OWN_THREADS: Final = 4
"""Threads of our own that use the database: the beat, the report of progress, the flusher of telemetry, the listener
for events."""
STARTUP_FAILURE: Final = 3
"""Exit code of a server that did not start, as uvicorn's own command has it."""
START_CHECK_S: Final = 0.05
COLLECT_AFTER: Final = 50_000
"""New objects until garbage is collected. A group of telemetry's reports has 10,000, none of which is in a cycle: a
collection for each group finds nothing, and costs a tenth of the intake."""
_log = structlog.get_logger(__name__)


def run(settings: Settings, *extensions: Extension) -> None:
    """Serve the API until SIGTERM or SIGINT.

    Raises:
        SettingsError: no database, no usable secret key, or keys of secrets that cannot be used.
    """
    settings.require("database_url")
    secret_key, secret_keys = settings.secret_key_bytes(), _secret_keys(settings)
    # As many connections as there are threads: a thread never waits for one.
    units = UnitOfWorkFactory.connected(
        str(settings.database_url),
        application_name="muster-api",
        pool_size=10,
        max_overflow=WORKER_THREADS + HOST_THREADS + OWN_THREADS - 10,
    )
    limits = limits_at_start(units)
    dependencies = AppDependencies(
        units=units,
        secret_key=secret_key,
        allowed_hosts=_allowed_hosts(settings),
        limits=limits,
        store=ObjectStore.from_settings(settings),
        secret_keys=secret_keys,
        bill_keys_file=settings.bill_keys_file,
    )
    dependencies.registry.register(DatabaseFigures(units))
    stop = threading.Event()
    states: list[State] = []
    app = create_app(dependencies, lambda made: states.append(made.state), *extensions)
    # Objects made at the start are never garbage: left out of every later collection, which then costs a tenth.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    has_tls = settings.api_tls_certificate is not None
    _log.info("api_starting", host=settings.api_host, port=settings.api_port, has_tls=has_tls)
    server = uvicorn.Server(_config(app, settings, limits))
    threading.Thread(target=_watch, args=(units, states[0], server, stop), name="watch", daemon=True).start()
    with suppress(KeyboardInterrupt):
        server.run()
    stop.set()
    service_manager.notify(service_manager.ENDING)
    units.close()
    if not server.started:
        sys.exit(STARTUP_FAILURE)


def _config(app: ASGIApp, settings: Settings, limits: LimitPolicy) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        loop="api.serve:PatientLoop",
        ws="none",
        http=bounded(Connections(bounds_of(limits), settings.api_trusted_proxies)),
        ssl_certfile=None if settings.api_tls_certificate is None else str(settings.api_tls_certificate),
        ssl_keyfile=None if settings.api_tls_key is None else str(settings.api_tls_key),
        proxy_headers=bool(settings.api_trusted_proxies),
        forwarded_allow_ips=list(settings.api_trusted_proxies),
        access_log=False,
        log_config=None,
        log_level=logging.WARNING,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=3,
    )


def _watch(units: UnitOfWorkFactory, state: State, server: uvicorn.Server, stop: threading.Event) -> None:
    """Run and watch this process's loops until ``stop``."""
    beating, _ = start_loop(Loop("beat", lambda stop: _beat(units, stop)), stop)
    state.loops.append(beating.progress)
    reporting, _ = start_loop(reporter(Reporter(units, "api").report, state.loops), stop)
    while not server.started and not stop.wait(START_CHECK_S):
        pass
    watched = [Watched(state.requests, threading.main_thread()), Watched(state.intake.progress, state.intake)]
    service_manager.notify(service_manager.READY)
    watch_until(stop, [*watched, beating, reporting])


class PatientLoop(uvloop.Loop):
    """Event loop whose servers wait for a TLS handshake for no longer than for a request's headers."""

    async def create_server(self, *arguments: Any, **named: Any) -> Any:
        """Listen as the loop of every process does, with shorter times if there is TLS."""
        if named.get("ssl") is not None:
            named |= {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": CLOSING_S}
        return await super().create_server(*arguments, **named)


def bounds_of(limits: LimitPolicy) -> Bounds:
    """Return the bounds of connections: a request may take twice the largest body, for the framing of its chunks."""
    return Bounds(
        message_bytes=2 * max(limits.json_body_bytes, HOST_BODY_BYTES),
        connections=allowed_connections(limits.connections),
        connections_per_address=limits.connections_per_address,
    )


def _secret_keys(settings: Settings) -> KeyWrapper | None:
    """Return the keys of secrets. A file must be readable now; a Vault that does not answer now may do so later.

    Raises:
        SettingsError: the keys of the file cannot be used, or a setting of Vault is missing.
    """
    keys = keys_of_settings(settings)
    if keys is None:
        return None
    try:
        if settings.secret_keys_file is not None:
            FileKeys(settings.secret_keys_file).active_key_id()
    except SecretKeyError as fault:
        raise SettingsError([f"{fault.detail} (it is {settings.secret_keys_file})"]) from fault
    try:
        keys.active_key_id()
    except SecretKeyError as fault:
        _log.warning("secret_keys_unusable", why=fault.detail)
    return keys


def _allowed_hosts(settings: Settings) -> frozenset[str]:
    """Return the accepted names.

    On loopback only loopback's, so that no web page reaches us by its own (DNS rebinding).
    """
    if is_loopback(settings.api_host):
        return frozenset({"localhost", "127.0.0.1", "[::1]", settings.api_host.lower()})
    return frozenset()


def _beat(units: UnitOfWorkFactory, stop: threading.Event) -> None:
    """Store periodically that this API takes heartbeats: no lease ends soon after it did not (R15)."""
    principal = system_principal("api")
    while not stop.is_set():
        with units.begin(principal, HEARTBEAT, quiet=True) as unit:
            beat(unit)
        stop.wait(BEAT_S)
