"""What an API process takes of the policy as it starts."""

from pathlib import Path

from sqlalchemy.engine import Engine

from control.core.unit_of_work import UnitOfWorkFactory
from control.policy import policies
from control.policy.policies import limits_at_start
from muster.db.engine import make_engine
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.limits import LimitPolicy
from muster.domain.principals import Principal, Role

OPERATOR = Principal(name="operator:test", role=Role.OPERATOR)


def test_the_active_policys_limits_hold(engine: Engine) -> None:
    units = UnitOfWorkFactory(engine)
    assert limits_at_start(units) == DEFAULT_POLICY.limits
    limits = LimitPolicy(json_body_bytes=4096, json_depth=8)
    with units.begin(OPERATOR, policies.ACTIVATE) as unit:
        policies.store_policy(unit, Policy(limits=limits), reason="smaller bodies")
    assert limits_at_start(units) == limits


def limits_of(engine: Engine) -> LimitPolicy:
    try:
        return limits_at_start(UnitOfWorkFactory(engine))
    finally:
        engine.dispose()


def test_a_database_without_tables_keeps_no_api_from_starting(engine: Engine) -> None:
    assert limits_of(make_engine(engine.url.set(database="postgres"))) == DEFAULT_POLICY.limits


def test_a_database_that_is_away_keeps_no_api_from_starting(tmp_path: Path) -> None:
    assert limits_of(make_engine(f"postgresql:///muster?host={tmp_path}")) == DEFAULT_POLICY.limits
