"""GPUs that differ from most of their model: in which attribute, and how many are kept out of a gang."""

from health.cohort.cohorts import Attribute
from health.cohort.drift import NODES_NAMED, Alike, drifts_of
from health.compute_capability import dtypes_of
from muster.domain.ids import NodeId
from muster.domain.policy.health import CohortPolicy

POLICY = CohortPolicy()


def node(number: int, model: str = "H100", num_gpus: int = 8, **attributes: Attribute) -> Alike:
    return Alike(model, NodeId(f"node_{number:03}"), num_gpus, {"driver_version": "580", **attributes})


def test_a_fleet_that_is_alike_has_no_drift() -> None:
    assert drifts_of([node(number) for number in range(4)], POLICY) == []


def test_three_of_ninety_six_nodes_on_another_driver_are_named_and_counted() -> None:
    groups = [node(number, driver_version="570" if number in {4, 5, 90} else "580") for number in range(96)]
    (drift,) = drifts_of(groups, POLICY)
    assert (drift.attribute, drift.majority, drift.num_nodes, drift.num_gpus) == ("driver_version", "580", 96, 768)
    (other,) = drift.others
    assert (other.value, other.num_nodes, other.num_gpus) == ("570", 3, 24)
    assert other.nodes == ("node_004", "node_005", "node_090")
    assert drift.num_kept_out == 24


def test_what_keeps_most_gpus_out_of_a_gang_comes_first() -> None:
    groups = [
        *(node(number, ecc_enabled="1") for number in range(6)),
        *(node(number, ecc_enabled="0") for number in range(6, 10)),
        node(10, driver_version="570", ecc_enabled="1"),
    ]
    drifts = drifts_of(groups, POLICY)
    assert [(each.attribute, each.num_kept_out, each.num_differing) for each in drifts] == [
        ("driver_version", 8, 8),
        ("ecc_enabled", 0, 32),
    ]
    asked = CohortPolicy(attributes=("model", "ecc_enabled"))
    assert [(each.attribute, each.num_kept_out) for each in drifts_of(groups, asked)] == [
        ("ecc_enabled", 32),
        ("driver_version", 0),
    ]


def test_a_tier_that_requests_less_is_ordered_to_mix_them() -> None:
    groups = [
        node(number, driver_version="570" if number else "580", ecc_enabled=str(number % 2)) for number in range(4)
    ]
    asked = {"reserved": None, "on_demand": {"model", "driver_version"}, "spot": {"model"}}
    by_name = {drift.attribute: drift.mixed_in for drift in drifts_of(groups, POLICY, asked)}
    assert by_name == {"driver_version": ("spot",), "ecc_enabled": ("on_demand", "reserved", "spot")}


def test_models_are_not_compared_with_each_other_and_the_unknown_with_none() -> None:
    groups = [node(0), node(1, model="H200", driver_version="570"), node(2, driver_version=None)]
    assert drifts_of(groups, POLICY) == []


def test_of_equally_many_gpus_the_value_on_more_nodes_is_the_majority() -> None:
    (drift,) = drifts_of([node(0, driver_version="570"), node(1, num_gpus=4), node(2, num_gpus=4)], POLICY)
    assert drift.majority == "580"


def test_all_nodes_are_counted_and_the_first_hundred_named() -> None:
    groups = [node(number, num_gpus=1, driver_version="570" if number < 150 else "580") for number in range(400)]
    ((other,),) = [drift.others for drift in drifts_of(groups, POLICY)]
    assert (other.num_nodes, len(other.nodes)) == (150, NODES_NAMED)


def test_what_tensor_cores_multiply_hangs_on_the_compute_capability() -> None:
    assert dtypes_of("9.0") == ("fp64", "tf32", "bf16", "fp16", "fp8", "int8")
    assert "fp8" not in (dtypes_of("8.0") or ())
    assert "fp4" in (dtypes_of("10.0") or ())
    assert dtypes_of("99.0") is None
    assert dtypes_of(None) is None
