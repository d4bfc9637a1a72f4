"""The application factory: routes, problems, documents; it refuses to start when a route declares no permission."""

import asyncio
import math
import operator
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.routing import iter_route_contexts
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from api import documents, problems
from api.address_limit import AddressLimit
from api.declared_query import add_strict_routes
from api.dependencies import AppDependencies
from api.host_threads import HostThreads
from api.log_news import LogNews
from api.manifest_bodies import ManifestReaders
from api.middleware import Edge
from api.permissions import declared_routes
from api.places import RequestPlaces, StreamPlaces
from api.streams import Broadcast
from api.telemetry import TelemetryFigures, TelemetryRoute
from api.v1 import (
    audit,
    breakers,
    bulk_changes,
    bundles,
    burn_ins,
    checkpoint_files,
    cohorts,
    cordons,
    drains,
    enrolment,
    events,
    figures,
    fleet,
    gpu_past,
    gpus,
    host_folders,
    host_repairs,
    hosts,
    incidents,
    job_costs,
    job_lists,
    jobs,
    keys,
    ledger,
    log_lines,
    logins,
    node_export,
    node_labels,
    nodes,
    notifications,
    objectives,
    outputs,
    overrides,
    pair_probes,
    persons,
    policies,
    quotas,
    rates,
    reclaims,
    rollups,
    secrets,
    statements,
    system,
    system_figures,
    telemetry,
    tenant_budgets,
    tenants,
    training,
    verdicts,
)
from control.telemetry.intake import Intake
from muster import __version__
from muster.progress import Progress

TICK_S: Final = 1.0
Extension = Callable[[FastAPI], None]


def create_app(dependencies: AppDependencies, *extensions: Extension) -> ASGIApp:
    """Return the whole API as one ASGI application; ``extensions`` add routes of their own, each with its permission.

    Raises:
        UndeclaredRouteError: a route, websocket or mount declares neither its permission nor why it needs none.
    """
    app = create_inner_app(dependencies, *extensions)
    intake = app.state.intake
    dependencies.registry.register(TelemetryFigures(intake))
    return Edge(
        TelemetryRoute(app, app, dependencies.units, intake),
        body_bytes=dependencies.limits.json_body_bytes,
        manifest_bytes=dependencies.limits.manifest_bytes,
        places=RequestPlaces(dependencies.limits.requests_per_key),
        allowed_hosts=dependencies.allowed_hosts,
        registry=dependencies.registry,
        templates={route.endpoint: route.path or "unmatched" for route in iter_route_contexts(app.routes)},
    )


def create_inner_app(dependencies: AppDependencies, *extensions: Extension) -> FastAPI:
    """Return the application without its outermost layer, for callers that inspect its routes."""
    app = FastAPI(
        title="Muster",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=_lifespan,
        redirect_slashes=False,
        routes=[*_ROUTES],
    )
    app.state.dependencies = dependencies
    app.state.broadcast = Broadcast(dependencies.units)
    app.state.intake = Intake(dependencies.units, on_flushed=dependencies.on_flushed)
    app.state.requests = Progress("requests")
    app.state.requests.rest(math.inf)  # until the event loop runs
    app.state.loops = [app.state.requests, app.state.intake.progress]
    app.state.log_news = LogNews(dependencies.units)
    app.state.host_threads = HostThreads()
    app.state.manifest_readers = ManifestReaders()
    limits = dependencies.limits
    app.state.stream_places = StreamPlaces(limits)
    app.state.beginning_logins = AddressLimit(logins.BURST, logins.PER_S)
    app.state.asking_logins = AddressLimit(logins.ANSWER_BURST, logins.ANSWER_PER_S)
    app.state.joining = AddressLimit(limits.joining_burst, limits.joining_per_s)
    problems.install(app)
    documents.install(app)
    for extend in extensions:
        extend(app)
    tuple(declared_routes(app))
    return app


def _routes() -> Sequence[BaseRoute]:
    """Return the routes, the same for every application: a request finds all other state in the application's.

    FastAPI computes parameters and answers again for each application's routes, which takes about a second for ours.
    All routes are in one router: each request searches a router within a router twice at each level. The search is in
    order, so the routes that are read most come first.
    """
    root = APIRouter(generate_unique_id_function=operator.attrgetter("name"))
    of_hosts = (enrolment, hosts, host_folders, telemetry, host_repairs)
    fleet_wide = (
        drains,
        node_labels,
        node_export,
        fleet,
        overrides,
        gpu_past,
        cohorts,
        burn_ins,
        breakers,
        cordons,
        bulk_changes,
        incidents,
        pair_probes,
        rollups,
    )
    records = (events, audit, policies, objectives, system_figures, ledger, figures)
    of_jobs = (log_lines, outputs, checkpoint_files, training, bundles, verdicts, reclaims)
    of_tenants = (keys, logins, persons, tenants, quotas, secrets, notifications)
    of_money = (rates, job_costs, tenant_budgets, statements)
    for module in (jobs, job_lists, gpus, nodes, *of_jobs, *of_tenants, *of_money, *fleet_wide, *records, *of_hosts):
        add_strict_routes(root, "/v1", module.router)
    add_strict_routes(root, "/v1", system.v1)
    add_strict_routes(root, "", system.router)
    return root.routes


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    ticking = asyncio.create_task(_tick(app.state.requests))
    yield
    ticking.cancel()
    app.state.broadcast.close()
    app.state.log_news.close()
    app.state.host_threads.close()
    app.state.manifest_readers.close()
    await run_in_threadpool(app.state.intake.close)


async def _tick(requests: Progress) -> None:
    """Note that the event loop runs: a request that blocks it keeps all others waiting."""
    while True:
        requests.advance()
        await asyncio.sleep(TICK_S)


_ROUTES: Final = _routes()
"""Made with the import, once for every application, so that what is forked afterwards has them."""
