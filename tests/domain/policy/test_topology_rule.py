"""What a job may say of its place: levels, slices, labels, a layout, and a sum of GPUs; nothing else."""

import pytest
from pydantic import ValidationError

from muster.domain.job.placement_spec import TopologyRule
from muster.domain.job.spec import JobSpec, Shape
from muster.domain.policy.placement import HazardPolicy, PlacementPolicy

DOCUMENT = {"name": "job", "program": {"script": "/srv/train.py"}}


def test_a_job_that_states_nothing_may_stand_anywhere() -> None:
    assert JobSpec.model_validate(DOCUMENT).topology == TopologyRule(required=None, preferred=None)


def test_levels_are_names_of_the_fleets_tree() -> None:
    spec = JobSpec.model_validate({**DOCUMENT, "topology": {"required": "pod", "preferred": "nvlink_domain"}})
    assert (spec.topology.required, spec.topology.preferred) == ("pod", "nvlink_domain")


@pytest.mark.parametrize(
    "topology",
    [
        {"require": "rack"},
        {"required": "Rack 1"},
        {"preferred": 3},
        "rack",
        {"slices": [{"level": "rack", "ranks": 0}]},
    ],
)
def test_anything_else_is_refused(topology: object) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({**DOCUMENT, "topology": topology})


@pytest.mark.parametrize(
    ("gpus", "on_hosts_of", "shape"),
    [(16, 8, (2, 8)), (12, 8, (2, 6)), (7, 8, (1, 7)), (13, 8, (13, 1)), (64, 4, (16, 4)), (3, 1, (3, 1))],
)
def test_a_sum_of_gpus_is_the_fewest_hosts_of_equal_parts(gpus: int, on_hosts_of: int, shape: tuple[int, int]) -> None:
    settled = Shape(gpus=gpus).settled(on_hosts_of)
    assert (settled.nodes, settled.gpus_per_node) == shape
    assert settled.gpus is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shape": {"gpus": 16, "nodes": 2}}, "takes `gpus` alone, the sum over its hosts, not with `nodes`"),
        ({"topology": {"slices": [{"level": "rack", "ranks": 8}] * 2}}, "names a level twice"),
        ({"node_labels": {"required": {"a": ["x"]}, "forbidden": {"a": ["x", "y"]}}}, "leave the label a no value"),
        ({"node_labels": {"required": {"a": []}}}, "at least 1 item"),
        ({"layout": {"tp": 0}}, "greater than or equal to 1"),
    ],
)
def test_what_contradicts_itself_is_refused_by_its_field(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        JobSpec.model_validate({**DOCUMENT, **fields})


def test_a_weak_score_and_a_boards_quarantines_add_up() -> None:
    hazard = HazardPolicy()
    told = [(None, 0), (100.0, 0), (89.0, 0), (60.0, 0), (10.0, 0), (100.0, 2)]
    assert [hazard.failures_in_million_h(*one) for one in told] == [0, 0, 500, 2_000, 10_000, 400]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"levels": ["node"]}, "neither fleet nor node"),
        ({"levels": ["rack", "rack"]}, "named once each"),
        ({"nvlink_level": "rack72"}, "nvlink_level is rack72, which is none of levels: rack"),
        ({"levels": ["site"]}, "leaf_level is rack, which is none of levels: site"),
        (
            {"hazard": {"bands": {key: {"below_score": 9, "failures_per_1000_h": 1} for key in "ab"}}},
            "two bands have the same below_score",
        ),
        (
            {"fragmentation": {"typical": {"x": {"gpus_per_node": 8, "nodes": 4, "level": "pod"}}}},
            "fragmentation.typical.x.level is pod, which is none of levels: rack",
        ),
        ({"fragmentation": {"typical": {"x": {"gpus_per_node": 8, "weight": 0}}}}, "greater than 0"),
        ({"fragmentation": {"typical_jobs": -1}}, "greater than or equal to 0"),
    ],
)
def test_a_tree_that_does_not_hold_together_is_no_policy(document: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        PlacementPolicy.model_validate(document, strict=False)
