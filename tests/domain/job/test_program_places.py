"""In what a job's program may run: the host's own, a virtual environment, a container."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from muster.domain.job.spec import JobSpec
from muster.wire.host import PartContainer, PartMount

IMAGE = "registry.example:5000/team/gpt@sha256:" + "0a" * 32


def _spec(**program: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "job", "program": {"script": "/srv/train.py", **program}})


@pytest.mark.parametrize("image", [IMAGE, "gpt", "team/gpt:v1.2", "localhost/gpt:1", "a.b-c/d_e/f:X"])
def test_an_image_by_reference_is_taken(image: str) -> None:
    container = _spec(container={"image": image}).program.container
    assert container is not None
    assert (container.image, container.engine, container.mounts, container.user) == (image, None, (), None)


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"image": "--privileged"}, "container.image.*must be a reference such as"),
        ({"image": "gpt;id"}, "must be a reference such as"),
        ({"image": "gpt@sha256:00"}, "must be a reference such as"),
        ({"image": "Team/GPT"}, "must be a reference such as"),
        ({"image": ""}, "container.image"),
        ({"image": "/srv/gpt.sqsh", "engine": "docker"}, "a file is for enroot"),
        ({"image": "/srv/g pt.sqsh"}, "no blank"),
        ({"image": "gpt", "engine": "enroot"}, "absolute path of a squashfs file"),
        ({"image": "/srv/gpt.sqsh", "user": "0:0"}, "leave `user` out"),
        ({"image": "gpt", "engine": "lxc"}, "container.engine"),
        ({"image": "gpt", "user": "root"}, "must be uid:gid in numbers"),
        ({"image": "gpt", "user": "1:4294967295"}, "must be uid:gid in numbers"),
        ({"image": "gpt", "privileged": True}, "container.privileged"),
        ({"image": "gpt", "mounts": [{"source": "data"}]}, "mounts.0.source.*must be an absolute path"),
        ({"image": "gpt", "mounts": [{"source": "/data/../etc"}]}, "must be an absolute path without"),
        ({"image": "gpt", "mounts": [{"source": "/"}]}, "these are the host's own"),
        ({"image": "gpt", "mounts": [{"source": "/var/run/docker.sock"}]}, "these are the host's own"),
        ({"image": "gpt", "mounts": [{"source": "/etc/"}]}, "these are the host's own"),
        ({"image": "gpt", "mounts": [{"source": "/data", "target": "/proc/1"}]}, "the engine sets these up"),
        ({"image": "gpt", "mounts": [{"source": "/data,readonly"}]}, "no blank, comma, colon or quote"),
        ({"image": "gpt", "mounts": [{"source": "/data:/etc"}]}, "no blank, comma, colon or quote"),
        ({"image": "gpt", "mounts": [{"source": "/a"}, {"source": "/b", "target": "/a"}]}, "more than one at /a"),
    ],
)
def test_any_other_container_is_refused_by_field_and_fault(container: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        _spec(container=container)
    said = " ".join(str(refusal.value).split())
    assert re.search(words, said), said


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ({"venv": "envs/mine"}, "must be an absolute path"),
        ({"venv": "/envs/mine", "python": "/usr/bin/python3"}, "leave `python` out"),
        ({"venv": "/envs/mine", "container": {"image": "gpt"}}, "`venv` is of the host"),
        ({"container": {"image": "gpt"}, "env": {"KEY": "a\nLD_PRELOAD=/x"}}, "cannot carry a line break.*KEY"),
        ({"container": {"image": "gpt"}, "env": {"DOCKER_HOST": "tcp://x"}}, "steer the container engine: DOCKER_HOST"),
    ],
)
def test_environments_that_contradict_each_other_are_refused(program: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        _spec(**program)


def test_a_container_crosses_the_wire() -> None:
    said = {"image": IMAGE, "engine": "podman", "user": "7:8", "mounts": [{"source": "/data/", "read_only": False}]}
    document = _spec(container=said).model_dump(mode="json")["program"]["container"]
    mounts = (PartMount(source="/data", read_only=False),)
    assert PartContainer.of(document) == PartContainer(image=IMAGE, engine="podman", user="7:8", mounts=mounts)
    assert PartContainer.of(None) is None


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("/ckpt,target=/etc", "no blank, comma, colon or quote"),
        ("/ckpt:/etc", "no blank, comma, colon or quote"),
        ("/etc/mine", "these are the host's own"),
    ],
)
def test_a_checkpoint_folder_that_is_no_mount_is_refused_with_a_container(folder: str, words: str) -> None:
    document: dict[str, Any] = {"name": "job", "program": {"script": "/srv/train.py"}, "checkpoint": {"folder": folder}}
    assert JobSpec.model_validate(document).checkpoint.folder == folder
    document["program"] = {"script": "/srv/train.py", "container": {"image": "gpt"}}
    with pytest.raises(ValidationError, match=f"`checkpoint.folder` is mounted in the container: .*{words}"):
        JobSpec.model_validate(document)
