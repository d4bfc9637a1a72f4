"""The topology constraint of a job: two names of levels, each optional, nothing else."""

import pytest
from pydantic import ValidationError

from muster.domain.job_spec import JobSpec, TopologyRule

DOCUMENT = {"name": "job", "program": {"script": "/srv/train.py"}}


def test_a_job_that_says_nothing_may_stand_anywhere() -> None:
    assert JobSpec.model_validate(DOCUMENT).topology == TopologyRule(required=None, preferred=None)


def test_levels_are_names_of_the_fleets_tree() -> None:
    spec = JobSpec.model_validate({**DOCUMENT, "topology": {"required": "pod", "preferred": "nvlink_domain"}})
    assert (spec.topology.required, spec.topology.preferred) == ("pod", "nvlink_domain")


@pytest.mark.parametrize("topology", [{"require": "rack"}, {"required": "Rack 1"}, {"preferred": 3}, "rack"])
def test_anything_else_is_refused(topology: object) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({**DOCUMENT, "topology": topology})
