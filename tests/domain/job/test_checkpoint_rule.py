"""Where a job may keep its checkpoints, and what it may name for that."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from muster.domain.job.spec import JobSpec
from muster.train.checkpoint.storage.places import S3Place

PROGRAM: dict[str, Any] = {"name": "job", "program": {"script": "/srv/train.py"}}
STORE = "s3://checkpoints/team/pretrain"


def test_a_store_is_named_with_secrets_of_the_job() -> None:
    rule = {"store": STORE, "credentials": "s3", "encryption_keys": "keys"}
    spec = JobSpec.model_validate({**PROGRAM, "checkpoint": rule, "secrets": ["s3", "keys"]})
    assert spec.checkpoint.model_dump() == {"folder": None, **rule}


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"store": STORE, "folder": "/mnt/checkpoints"}, "takes `folder` or `store`, not both"),
        ({"credentials": "s3"}, "`credentials` are for a `store`, which is missing"),
        (
            {"store": STORE, "credentials": "hub"},
            "`checkpoint.credentials` is hub, which is none of the job's `secrets`",
        ),
        ({"encryption_keys": "keys"}, "`checkpoint.encryption_keys` is keys, which is none of the job's `secrets`"),
        ({"store": "s3://Team"}, "must be s3://BUCKET/PREFIX"),
    ],
)
def test_what_fits_not_together_is_refused_by_name(rule: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        JobSpec.model_validate({**PROGRAM, "checkpoint": rule, "secrets": ["s3"]})


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket-1",
        "s3://bucket-1/",
        "s3://bucket-1/a/b_c(1)",
        "s3://Bucket/a",
        "s3://b",
        "s3://bucket//a",
        "s3://bucket/a/../b",
        "s3://bucket/a b",
        "s3://user:word@bucket/a",
        "gs://bucket/a",
        "/bucket/a",
        "",
    ],
)
def test_the_specification_takes_what_the_runtime_reads(text: str) -> None:
    """Two rooms that may not import each other."""
    document = {**PROGRAM, "checkpoint": {"store": text}}
    assert is_taken(lambda: JobSpec.model_validate(document)) is is_taken(lambda: S3Place.of(text))


def is_taken(read: Callable[[], object]) -> bool:
    try:
        read()
    except ValueError:
        return False
    return True
