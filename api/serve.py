"""The process ``muster api``: uvicorn over the application, with TLS when given a certificate."""

import gc
import logging
import threading
from typing import Any, Final

import structlog
import uvicorn
import uvloop

from api.app import Extension, create_app
from api.connection_bounds import CLOSING_S, Bounds, Connections, allowed_connections, bounded
from api.dependencies import AppDependencies
from api.figures import DatabaseFigures
from api.host_threads import HOST_THREADS
from api.middleware import HOST_BODY_BYTES
from control.attempts.reconcile import HEARTBEAT, beat
from control.core.unit_of_work import UnitOfWorkFactory
from control.policy.policies import limits_at_start
from muster.domain.errors import MusterError
from muster.domain.policy.document import LimitPolicy
from muster.domain.principals import system_principal
from muster.settings import Settings, is_loopback

BEAT_S: Final = 5.0
KEEP_ALIVE_S: Final = 60
WORKER_THREADS: Final = 40
HANDSHAKE_S: Final = 10.0
OWN_THREADS: Final = 3
"""Threads of our own that use the database: the beat, the flusher of telemetry, the listener for events."""
_log = structlog.get_logger(__name__)


def run(settings: Settings, *extensions: Extension) -> None:
    """Serve the API until SIGTERM or SIGINT.

    Raises:
        SettingsError: no database, or no usable secret key.
    """
    settings.require("database_url")
    secret_key = settings.secret_key_bytes()
    # As many connections as there are threads: a thread never waits for one.
    units = UnitOfWorkFactory.connected(
        str(settings.database_url),
        application_name="muster-api",
        pool_size=10,
        max_overflow=WORKER_THREADS + HOST_THREADS + OWN_THREADS - 10,
    )
    limits = limits_at_start(units)
    dependencies = AppDependencies(
        units=units, secret_key=secret_key, allowed_hosts=_allowed_hosts(settings), limits=limits
    )
    dependencies.registry.register(DatabaseFigures(units))
    stop = threading.Event()
    threading.Thread(target=_beat, args=(units, stop), name="api-beat", daemon=True).start()
    app = create_app(dependencies, *extensions)
    # Objects made at the start are never garbage: left out of every later collection, which then costs a tenth.
    gc.collect()
    gc.freeze()
    has_tls = settings.api_tls_certificate is not None
    _log.info("api_starting", host=settings.api_host, port=settings.api_port, has_tls=has_tls)
    uvicorn.run(
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
    stop.set()
    units.close()


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
    while True:
        try:
            with units.begin(principal, HEARTBEAT, quiet=True) as unit:
                beat(unit)
        except MusterError as error:
            _log.warning("beat_missed", fault=error.detail)
        if stop.wait(BEAT_S):
            return
