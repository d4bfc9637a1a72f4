"""A tenant at ten times its limits, and its cost for all others: CPU of a scheduler's cycle and of their requests.

Two stores with the same fleet and the same jobs of other tenants. In one a tenant has as many jobs as it may, with
short programs. In the other it has submitted ten times as many, with programs ten times as long as its bytes allow:
the policy refused what was beyond. Pairs of the two alternate, and the figure is the median of the pairs' ratios. A
third store, without the tenant, is given as a peer. A request's CPU includes that of the client in this process.

A tenant that asks for plans without end gets its seconds of CPU a minute; the last figure is what each refusal costs.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import text
from starlette.testclient import TestClient

from api.app import create_app
from api.dependencies import AppDependencies
from benchmarks.commit_fleet import fill, submit
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from control.placement.scheduling import question
from control.policy.policies import ACTIVATE, store_policy
from control.tenants import keys, tenants
from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine
from muster.domain.errors import TenantLimitError
from muster.domain.ids import TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.policy.document import Policy
from muster.domain.principals import Principal, Role
from scheduler.planner import plan

BAR: Final = 1.10
REFUSED_BAR: Final = 0.2
REFUSALS: Final = 20
_OPERATOR: Final = Principal(name="operator:bench", role=Role.OPERATOR)
_SHAPE: Final = {"nodes": 2, "gpus_per_node": 8}
_SPAN: Final = 3_900
"""Characters of one argument of a long program."""


@dataclass(frozen=True, slots=True)
class Size:
    """``allowed``: open jobs that the policy allows; ``others``: pending jobs of other tenants; ``pairs``: measured."""

    nodes: int
    allowed: int
    others: int
    pairs: int
    requests: int


SIZES: Final = Sizes(full=Size(256, 200, 500, 20, 20), smallest=Size(2, 4, 4, 2, 2))


@dataclass(frozen=True, slots=True)
class Store:
    """One store with a fleet, and a client of another tenant. ``num_refused``: submissions beyond a limit."""

    units: UnitOfWorkFactory
    client: TestClient
    headers: dict[str, str]
    num_refused: int

    def cycle(self) -> None:
        with self.units.read() as session:
            asked = question(session, self.units.clock())
        if asked is not None:
            plan(asked.gpus, asked.queue, asked.policy, asked.workload)

    def request(self, count: int) -> None:
        for _ in range(count):
            answer = self.client.get("/v1/jobs?limit=20", headers=self.headers)
            answer.raise_for_status()


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-limits-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o711)
        postgres = PostgresServer(folder / "postgres", durable=False)
        postgres.start()
        stack.callback(postgres.stop)
        names = ("absent", "within", "beyond")
        stores = {one: stack.enter_context(_store(postgres, one, size)) for one in names}
        yield list(_figures(stores, size))
        yield [_planning(stores["within"])]


def _figures(stores: dict[str, Store], size: Size) -> Iterator[Figure]:
    works: dict[str, Callable[[Store], None]] = {
        "a scheduler's cycle": Store.cycle,
        "a request of another tenant": lambda store: store.request(size.requests),
    }
    for what, work in works.items():
        for store in stores.values():
            work(store)
        costs = [_costs(stores, work, number) for number in range(size.pairs)]
        peers = {f"{name} ms": round(1000 * statistics.median(one[name] for one in costs), 2) for name in stores} | {
            "÷ absent": round(statistics.median(one["beyond"] / one["absent"] for one in costs), 3),
            "refused": float(stores["beyond"].num_refused),
        }
        ratio = statistics.median(one["beyond"] / one["within"] for one in costs)
        name = f"CPU of {what}, one at ten times its limits ÷ within"
        yield Figure(name, ratio, "×", BAR, peers=peers, basis=Basis.RATIO)


def _planning(store: Store) -> Figure:
    """Let one tenant ask for plans until it is refused, and on: a refusal reads no fleet."""
    _store_limits(store.units, {"planning_s_per_minute": 1})
    question = {"tier": "on_demand", "shape": _SHAPE}
    costs: dict[int, list[float]] = {200: [], 429: []}
    while len(costs[429]) < REFUSALS:
        began = time.process_time()
        answer = store.client.post("/v1/job-plans", json=question, headers=store.headers)
        costs[answer.status_code].append(time.process_time() - began)
    planned, refused = (statistics.median(of) for of in costs.values())
    peers = {
        "a plan ms": planned * 1e3,
        "a refusal ms": refused * 1e3,
        "plans": float(len(costs[200])),
        "their CPU s, of 1 s a minute": sum(costs[200]),
    }
    name = "CPU of a refused plan ÷ one that is made"
    return Figure(name, refused / planned, "×", REFUSED_BAR, peers=peers, basis=Basis.RATIO)


def _costs(stores: dict[str, Store], work: Callable[[Store], None], number: int) -> dict[str, float]:
    """Measure each store once, each time another one first: collections of garbage come at a steady pace."""
    names = list(stores)
    first = number % len(names)
    return {name: _cpu_s(stores[name], work) for name in names[first:] + names[:first]}


def _cpu_s(store: Store, work: Callable[[Store], None]) -> float:
    began = time.process_time()
    work(store)
    return time.process_time() - began


@contextmanager
def _store(postgres: PostgresServer, name: str, size: Size) -> Iterator[Store]:
    postgres.create_database(name)
    migrate.upgrade(postgres.url(name))
    engine = make_engine(postgres.url(name))
    units = UnitOfWorkFactory(engine)
    other = fill(units, size.nodes)
    greedy, headers = _tenant(units), _key_of(units, other)
    _store_limits(units, {"open_jobs": 1_000_000, "submissions_per_minute": 1_000_000})
    submit(units, other, size.others, _SHAPE)
    _store_limits(units, {"open_jobs": size.allowed, "stored_bytes": size.allowed * (32 << 10)})
    num_refused = 0
    if name == "within":
        submit(units, greedy, size.allowed, _SHAPE)
    elif name == "beyond":
        num_refused = _submit_beyond(units, greedy, size.allowed)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))
    app = create_app(AppDependencies(units=units, secret_key=b"x" * 32, allowed_hosts=frozenset({"127.0.0.1"})))
    try:
        with TestClient(app, base_url="http://127.0.0.1") as client:
            yield Store(units, client, headers, num_refused)
    finally:
        engine.dispose()


def _store_limits(units: UnitOfWorkFactory, limits: dict[str, int]) -> None:
    with units.begin(_OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy.model_validate({"limits": {"tenant": limits}}), reason="the benchmark")


def _submit_beyond(units: UnitOfWorkFactory, tenant_id: TenantId, allowed: int) -> int:
    """Submit ten times the jobs, a tenth of the allowed number with long programs. Return how many were refused."""
    member = Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=tenant_id)
    num_refused = 0
    for number in range(10 * allowed):
        args = ["x" * _SPAN] * 80 if number < allowed // 10 else []
        program = {"script": "/srv/train.py", "args": args}
        spec = JobSpec.model_validate({"name": "bench", "program": program, "shape": _SHAPE}, strict=False)
        try:
            with units.begin(member, jobs.SUBMIT) as unit:
                jobs.submit(unit, spec)
        except TenantLimitError:
            num_refused += 1
    return num_refused


def _tenant(units: UnitOfWorkFactory) -> TenantId:
    with units.begin(_OPERATOR, tenants.CREATE) as unit:
        return tenants.create(unit, name="greedy").id


def _key_of(units: UnitOfWorkFactory, tenant_id: TenantId) -> dict[str, str]:
    with units.begin(_OPERATOR, keys.CREATE) as unit:
        made = keys.create(unit, name="bench", role=Role.TENANT_MEMBER, tenant_id=tenant_id)
    return {"Authorization": f"Bearer {made.token.text}"}
