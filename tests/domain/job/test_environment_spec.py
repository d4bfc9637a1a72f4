"""The environment of a job's program: which lock it may name, and with what it cannot be combined."""

from typing import Any

import pytest
from pydantic import ValidationError

from muster.domain.job.request import ENVIRONMENT, request_of_spec
from muster.domain.job.spec import JobSpec, Program

DIGEST = "0a" * 32


def _program(environment: Any, **fields: Any) -> Program:
    return Program.model_validate({"script": "train.py", "bundle": DIGEST, "environment": environment, **fields})


def test_a_lock_with_extras_and_packages_of_the_host() -> None:
    asked = {"lock": "a/uv.lock", "extras": ["gpu"], "groups": ["dev"], "from_host": ["torch", "nvidia-*"]}
    environment = _program({**asked, "allows_source": True}).environment
    assert environment is not None
    assert environment.model_dump() == {
        "lock": "a/uv.lock",
        "extras": ("gpu",),
        "groups": ("dev",),
        "from_host": ("torch", "nvidia-*"),
        "allows_source": True,
    }


@pytest.mark.parametrize("lock", ["../uv.lock", "/srv/uv.lock", "a/../uv.lock", "./uv.lock", "poetry.lock", "uv", ""])
def test_a_lock_is_a_file_of_the_bundle(lock: str) -> None:
    with pytest.raises(ValidationError, match=r"inside of the bundle's folder|`uv.lock`, or of a `.txt`|at least 1"):
        _program({"lock": lock})


@pytest.mark.parametrize(
    ("field", "word"),
    [("extras", "--index-url=x"), ("groups", "a b"), ("from_host", "-e"), ("from_host", "torch;x"), ("extras", "")],
)
def test_no_word_is_an_option_or_two(field: str, word: str) -> None:
    with pytest.raises(ValidationError, match="must be"):
        _program({"lock": "uv.lock", field: [word]})


def test_extras_are_of_a_project() -> None:
    with pytest.raises(ValidationError, match=r"`extras` and `groups` are of a `uv.lock`"):
        _program({"lock": "requirements.txt", "groups": ["dev"]})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bundle": None, "script": "/srv/train.py"}, "needs a `bundle`, which has its lock file"),
        ({"python": "/usr/bin/python3"}, "leave `python` out"),
        ({"venv": "/srv/venv"}, "leave `venv` out"),
        ({"container": {"image": "gpt"}}, "leave `container` out"),
    ],
)
def test_it_replaces_every_other_interpreter(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        _program({"lock": "uv.lock"}, **fields)


def test_only_hosts_that_build_environments_get_the_job() -> None:
    spec = JobSpec(name="a", program=_program({"lock": "uv.lock"}))
    assert ENVIRONMENT in request_of_spec(spec).capabilities
    assert ENVIRONMENT not in request_of_spec(JobSpec(name="a", program=_program(None))).capabilities
