"""The datasets that a job names: what is accepted, and how its program finds them."""

import json
from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from muster.domain.job.dataset_spec import DatasetCheck, environment_of
from muster.domain.job.spec import JobSpec

PROGRAM = {"name": "job", "program": {"script": "/srv/train.py"}}
CORPUS = {"name": "corpus", "path": "/mnt/data/corpus"}


def spec(*datasets: Mapping[str, object], **more: object) -> JobSpec:
    return JobSpec.model_validate({**PROGRAM, "datasets": list(datasets), **more})


def test_a_dataset_is_checked_by_sizes_unless_its_checksums_are_requested() -> None:
    (plain,) = spec(CORPUS).datasets
    (read,) = spec({**CORPUS, "verify": "checksums", "manifest": "/mnt/manifests/corpus.json"}).datasets
    assert (plain.verify, plain.manifest) == (DatasetCheck.SIZES, None)
    assert (read.verify, read.manifest) == (DatasetCheck.CHECKSUMS, "/mnt/manifests/corpus.json")


def test_the_program_finds_each_by_a_variable_and_all_by_name() -> None:
    found = environment_of(spec(CORPUS, {"name": "val-2.en", "path": "/mnt/val"}).datasets)
    assert found["MUSTER_DATASET_CORPUS"] == "/mnt/data/corpus"
    assert found["MUSTER_DATASET_VAL_2_EN"] == "/mnt/val"
    assert json.loads(found["MUSTER_DATASETS"]) == {"corpus": "/mnt/data/corpus", "val-2.en": "/mnt/val"}
    assert environment_of(()) == {}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([CORPUS, CORPUS], "corpus and corpus are both MUSTER_DATASET_CORPUS"),
        ([{"name": "a-b", "path": "/a"}, {"name": "a_b", "path": "/b"}], "a-b and a_b are both MUSTER_DATASET_A_B"),
        ([{"name": "corpus", "path": "data/corpus"}], "must be an absolute path"),
        ([{"name": "Corpus", "path": "/a"}], "must be 1 to 63 of a-z"),
        ([{**CORPUS, "verify": "all"}], "'sizes' or 'checksums'"),
        ([{**CORPUS, "manifest": "corpus.json"}], "must be an absolute path"),
        ([{"name": f"set-{number}", "path": "/a"} for number in range(17)], "at most 16"),
    ],
)
def test_what_cannot_be_found_later_is_refused_by_name(wrong: list[dict[str, object]], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        spec(*wrong)


def test_in_a_container_a_dataset_is_limited_to_what_a_mount_is() -> None:
    program = {"script": "/srv/train.py", "container": {"image": "docker.io/library/a:1"}}
    assert spec(CORPUS, program=program).datasets
    with pytest.raises(ValidationError, match="the dataset corpus is mounted in the container: its path"):
        spec({"name": "corpus", "path": "/etc/corpus"}, program=program)
