"""A job's bundle, and paths of its program that are relative to it."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from muster.domain.job.spec import Program

DIGEST = "0a" * 32


def _program(**fields: Any) -> Program:
    return Program.model_validate({"script": "train.py", "bundle": DIGEST, **fields})


@pytest.mark.parametrize("script", ["train.py", "a/b c/train.py", "/srv/train.py", "..a/x", ".a/t.py"])
def test_a_script_may_be_of_the_bundle_or_of_the_host(script: str) -> None:
    program = _program(script=script, working_dir="a/b")
    assert (program.script, program.working_dir, program.bundle) == (script, "a/b", DIGEST)


@pytest.mark.parametrize("script", ["../train.py", "a/../../b.py", "./train.py", ".", "a//b.py", "a/", "..", "a/./b"])
def test_a_path_that_leaves_the_bundle_is_refused(script: str) -> None:
    for fields in ({"script": script}, {"working_dir": script}):
        with pytest.raises(ValidationError, match="inside of the bundle's folder"):
            _program(**fields)


@pytest.mark.parametrize("fields", [{"script": "train.py"}, {"script": "/srv/train.py", "working_dir": "a"}])
def test_without_a_bundle_a_path_is_absolute(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="must be an absolute path"):
        Program.model_validate(fields)


@pytest.mark.parametrize("digest", ["0a", "0A" * 32, "0g" * 32, DIGEST + "\n", DIGEST + "0", ""])
def test_a_bundle_is_named_by_its_whole_digest(digest: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        _program(bundle=digest)
    assert re.search("64 hexadecimal digits in lower case|at most 64", str(refusal.value))


@pytest.mark.parametrize("word", ["./run.sh", "bin/run", "/usr/bin/python3", "python3", "..."])
def test_a_command_may_be_of_the_bundle_of_the_host_or_on_its_path(word: str) -> None:
    program = Program.model_validate({"launcher": "command", "argv": [word, "../x"], "bundle": DIGEST})
    assert program.argv == (word, "../x")


@pytest.mark.parametrize("word", ["../run.sh", "a/../../run.sh", "./../run.sh", "a//run.sh"])
def test_a_command_that_leaves_the_bundle_is_refused(word: str) -> None:
    with pytest.raises(ValidationError, match="inside of the bundle's folder"):
        Program.model_validate({"launcher": "command", "argv": [word], "bundle": DIGEST})


@pytest.mark.parametrize("target", ["/muster/bundle", "/muster", "/muster/bundle/data"])
def test_no_mount_hides_the_bundle_in_a_container(target: str) -> None:
    container = {"image": "gpt", "mounts": [{"source": "/data", "target": target}]}
    with pytest.raises(ValidationError, match="/muster/bundle in the container is the bundle's folder"):
        _program(container=container)
    assert _program(container={"image": "gpt", "mounts": [{"source": "/data", "target": "/muster/bundles"}]}).container
    assert Program.model_validate({"script": "/x.py", "container": container}).container
