"""Templates of the form of a job: what a first job, a training and others have, to be filled in further."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """A beginning of a job. ``words``: what it is for."""

    key: str
    words: str
    document: Mapping[str, Any]


TEMPLATES: Final[Sequence[JobTemplate]] = (
    JobTemplate(
        "hello",
        "A first job: one command on one GPU",
        {
            "name": "hello",
            "program": {"launcher": "command", "argv": ["sh", "-c", "echo hello from $(hostname)"]},
            "shape": {"nodes": 1, "gpus_per_node": 1},
            "wall_time_s": 600,
        },
    ),
    JobTemplate(
        "training",
        "A training on one host, one rank a GPU",
        {
            "name": "train",
            "program": {"launcher": "torchrun", "script": "train.py"},
            "shape": {"nodes": 1, "gpus_per_node": 8},
            "restart": {"max_restarts": 3},
        },
    ),
    JobTemplate(
        "gang",
        "A training on four hosts, restarted after a hang",
        {
            "name": "pretrain",
            "program": {"launcher": "torchrun", "script": "train.py"},
            "shape": {"nodes": 4, "gpus_per_node": 8},
            "on_hang": "restart",
        },
    ),
    JobTemplate(
        "elastic",
        "An elastic training: continues with fewer hosts",
        {
            "name": "elastic",
            "program": {"launcher": "torchrun", "script": "train.py"},
            "shape": {"nodes": 4, "gpus_per_node": 8, "min_nodes": 2, "max_nodes": 8},
        },
    ),
    JobTemplate(
        "container",
        "A program in a container, by the image's digest",
        {
            "name": "in-container",
            "program": {
                "launcher": "command",
                "argv": ["python3", "-m", "my.module"],
                "container": {"image": "registry.example.com/team/image@sha256:"},
            },
            "shape": {"nodes": 1, "gpus_per_node": 1},
        },
    ),
)


def template_of(key: str) -> JobTemplate | None:
    return next((each for each in TEMPLATES if each.key == key), None)
