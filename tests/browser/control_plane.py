"""One control plane for the pages: a database of its own on the process's PostgreSQL, and the API as a process."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from control.core.sealer import seal_once
from control.core.sequencer import sequence_once
from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants.sessions import sign_in_by_key
from local.bootstrap import FIRST_PERSON, LocalIdentities, bootstrap, key_file
from local.children import Child, child_environment
from local.postgres import PostgresServer
from muster.db.engine import make_engine
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.health import BreakerPolicy, HealthPolicy
from muster.domain.policy.tiers import ReclaimPolicy, TierPolicy
from muster.domain.principals import Role
from muster.ports import free_port
from muster.settings import make_secret_key_file, make_secret_keys_file
from tests.patient import PATIENT
from tests.readiness import is_ready
from tests.waiting import wait_until

START_S: Final = 300.0
POLICY: Final = Policy(
    health=HealthPolicy(
        breaker=BreakerPolicy(
            fleet_window_floor=100, fleet_floor=100, rack_floor=100, cohort_floor=100, tenant_floor=100
        )
    ),
    tiers={**DEFAULT_POLICY.tiers, "spot": TierPolicy(priority=100, notice_s=7_200, min_run_s=0)},
    reclaim=ReclaimPolicy(cap_fraction=1.0, window_s=600),
)
"""Production's, except for a breaker that lets every test break a GPU of its own, and notices longer than all tests."""
TENANTS_ROLES: Final = frozenset({Role.TENANT_MEMBER, Role.TENANT_ADMIN})


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """``password``: of the first person. No host is enrolled and no scheduler runs: a test brings what it shows."""

    url: str
    units: UnitOfWorkFactory
    identities: LocalIdentities
    password: str
    folder: Path

    @property
    def person(self) -> str:
        return FIRST_PERSON

    def key(self, role: Role) -> str:
        """A key of that role; a tenant's is of the demo tenant."""
        tenant_id = self.identities.tenant_id if role in TENANTS_ROLES else None
        return key_file(self.units, self.folder / f"{role}.key", role, tenant_id=tenant_id).read_text().strip()

    def session_token(self, role: Role) -> str:
        """Of a new session of the console, as the sign-in page would have made it."""
        return sign_in_by_key(self.units, self.key(role), address=None).text

    def report_events(self) -> None:
        """What the control worker does: events get their positions, so that pages receive them; entries are sealed."""
        while sequence_once(self.units) or seal_once(self.units):
            pass


@contextmanager
def running_control_plane(
    postgres: PostgresServer, template: str, folder: Path, python: Path
) -> Iterator[ControlPlane]:
    """Hold a control plane up, whose API ``python`` runs."""
    name = f"pages_{uuid.uuid4().hex}"
    postgres.create_database(name, template=template)
    own = folder / name
    own.mkdir(mode=0o711)
    database_url = postgres.url(name)
    engine = make_engine(database_url, limits=PATIENT)
    units = UnitOfWorkFactory(engine)
    identities = bootstrap(units, own / "keys", policy=POLICY, policy_name="the tests of the pages")
    assert identities.operator_password is not None, "a new database has no person yet"
    secret_key_file, secret_keys_file, port = own / "secret.key", own / "secrets.keys", free_port()
    make_secret_key_file(secret_key_file)
    make_secret_keys_file(secret_keys_file)
    variables = child_environment(
        database_url=database_url, secret_key_file=secret_key_file, secret_keys_file=secret_keys_file, api_port=port
    )
    child = Child("api", ["api"], variables, own / "api.log", str(python))
    child.start()
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _is_ready(child, url), timeout_s=START_S)
        yield ControlPlane(url, units, identities, identities.operator_password, own)
    finally:
        child.stop()
        engine.dispose()
        postgres.drop_database(name)


def _is_ready(child: Child, url: str) -> bool:
    assert child.is_running(), f"the API ended at its start:\n{child.log_path.read_text()[-3000:]}"
    return is_ready(url, timeout_s=5)
