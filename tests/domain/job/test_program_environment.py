"""What a tenant may put in its program's environment."""

import pytest
from pydantic import ValidationError

from muster.domain.job.spec import JobSpec


def _spec(name: str) -> JobSpec:
    return JobSpec.model_validate({"name": "job", "program": {"script": "/srv/train.py", "env": {name: "1"}}})


@pytest.mark.parametrize("name", ["HF_HOME", "MUSTER_TRAIN_FAULTS", "MUSTER_TRAIN_FAULTS_SEED"])
def test_what_is_the_tenants_own_is_taken(name: str) -> None:
    assert _spec(name).program.env == {name: "1"}


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "MUSTER_FENCE", "MUSTER_TRAIN_SOCKET", "MUSTER_TRAIN_FAULTS_X"])
def test_what_reaches_past_the_sandbox_or_is_set_by_us_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError, match=f"set by Muster or refused for safety: {name}"):
        _spec(name)
