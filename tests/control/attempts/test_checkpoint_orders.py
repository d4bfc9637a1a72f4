"""What an order states of the place of a job's checkpoints, and of faults of values."""

from control.core.unit_of_work import UnitOfWorkFactory
from tests.fleet_factory import make_fleet
from tests.played_host import PlayedHost


def ordered(units: UnitOfWorkFactory, **spec: object) -> tuple[str, dict[str, str]]:
    fleet = make_fleet(units)
    host = PlayedHost(units, fleet.node_id, boot_id="boot-of-alpha")
    job_id = fleet.submit(**spec)
    host.beat()
    fleet.cycle()
    placed = fleet.attempts(job_id)[-1].attempt
    claimed = host.claim(placed.id, placed.fence)
    assert claimed.order is not None
    stated = ("MUSTER_CHECKPOINT_", "MUSTER_ON_VALUE_FAULT")
    told = {name: value for name, value in claimed.order.env.items() if name.startswith(stated)}
    del told["MUSTER_CHECKPOINT_INTERVAL"]
    return job_id, told


def test_a_store_goes_with_the_jobs_own_prefix_and_its_secrets_by_name_alone(units: UnitOfWorkFactory) -> None:
    rule = {"store": "s3://checkpoints/team/", "credentials": "s3", "encryption_keys": "keys"}
    job_id, told = ordered(units, checkpoint=rule, secrets=["s3", "keys"])
    assert told == {
        "MUSTER_CHECKPOINT_STORE": f"s3://checkpoints/team/{job_id}",
        "MUSTER_CHECKPOINT_CREDENTIALS_FILE": "s3",
        "MUSTER_CHECKPOINT_KEY_FILE": "keys",
    }


def test_a_folder_goes_as_ever(units: UnitOfWorkFactory) -> None:
    job_id, told = ordered(units, checkpoint={"folder": "/mnt/checkpoints"})
    assert told == {"MUSTER_CHECKPOINT_DIR": f"/mnt/checkpoints/{job_id}"}


def test_the_jobs_rule_for_faults_of_values_goes_as_it_is(units: UnitOfWorkFactory) -> None:
    assert ordered(units, on_value_fault="rollback:2")[1] == {"MUSTER_ON_VALUE_FAULT": "rollback:2"}


def test_what_names_no_place_leaves_it_to_the_host(units: UnitOfWorkFactory) -> None:
    assert ordered(units)[1] == {}
