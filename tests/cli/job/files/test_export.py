"""A job that is written as a file reads as an equal one, whatever its texts are."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given

from muster.cli.job.files.job_file import read_job_file
from muster.cli.job.files.variables import GivenVariables
from muster.documents.job_files import file_document, yaml_text
from muster.domain.job.spec import JobSpec
from muster.domain.job.submission import JobSubmission
from muster.domain.validation import validated
from tests.domain.job.specifications import ODD_TEXTS, SPECIFICATIONS

ODD = {"name": "odd", "program": {"launcher": "command", "argv": list(ODD_TEXTS)}}
IN_BUNDLE = {"name": "in-bundle", "program": {"script": "a.py", "working_dir": "b", "bundle": "0" * 64}}


def read(folder: Path, text: str) -> Any:
    path = folder / "job.yaml"
    path.write_text(text)
    return read_job_file(path, GivenVariables()).document


@given(document=SPECIFICATIONS)
@example(document=ODD)
@example(document=IN_BUNDLE)
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_job_that_is_exported_and_read_is_equal(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any], *, is_whole: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    submitted = JobSpec.model_validate(document, strict=False)
    spec = submitted.model_copy(update={"shape": submitted.shape.settled(8)})  # as the server stores it
    served = spec.model_dump(mode="json")
    written = file_document(served, is_whole=is_whole)
    for text in (yaml_text(written), json.dumps(written)):
        assert validated(JobSubmission, read(folder, text)).spec.model_dump() == spec.model_dump()


def test_a_file_shows_size_and_tier_and_leaves_out_defaults() -> None:
    spec = JobSpec.model_validate({"name": "a", "program": {"script": "/a.py"}, "labels": {"team": "vision"}})
    assert file_document(spec.model_dump(mode="json")) == {
        "name": "a",
        "tier": "on_demand",
        "shape": {"nodes": 1, "gpus_per_node": 1},
        "program": {"script": "/a.py"},
        "labels": {"team": "vision"},
    }


def test_of_a_newer_server_every_field_is_written() -> None:
    spec = JobSpec.model_validate({"name": "a", "program": {"script": "/a.py"}}).model_dump(mode="json")
    newer = {**spec, "outputs": ["/out/${rank}"]}
    written = file_document(newer)
    assert written["outputs"] == ["/out/$${rank}"]
    assert written.keys() == newer.keys()
