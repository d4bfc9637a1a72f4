"""What a job may use of each host: three figures, each optional, and how they reach the host."""

from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from muster.domain.job.spec import HostLimits, JobSpec
from muster.wire.host import Order, PartLimits

DOCUMENT = {"name": "job", "program": {"script": "/srv/train.py"}}
ORDER: dict[str, Any] = {
    "attempt_id": "att_1",
    "job_id": "job_1",
    "fence": 1,
    "node_rank": 0,
    "num_nodes": 1,
    "ranks_per_node": 1,
    "gpus": [],
    "launcher": "command",
    "script": None,
    "args": [],
    "argv": ["true"],
    "python": None,
    "working_dir": None,
    "env": {},
    "rendezvous": {"host": "127.0.0.1", "port": 0},
    "wall_time_s": None,
    "budget_gpu_hours": None,
    "grace_s": 1.0,
    "kill_grace_s": 1.0,
    "log_limit_bytes_per_stream": 4096,
}


def test_a_job_that_states_nothing_is_without_limits() -> None:
    assert JobSpec.model_validate(DOCUMENT).limits == HostLimits(memory_bytes=None, pids=None, cpus=None)


def test_whole_cpus_need_no_point() -> None:
    spec = JobSpec.model_validate({**DOCUMENT, "limits": {"memory_bytes": 64 << 30, "pids": 4096, "cpus": 16}})
    assert spec.limits == HostLimits(memory_bytes=64 << 30, pids=4096, cpus=16.0)


@pytest.mark.parametrize(
    "limits",
    [
        {"memory_bytes": 1 << 20},
        {"memory_bytes": "64GiB"},
        {"memory_bytes": 1.5e9},
        {"pids": 0},
        {"pids": True},
        {"cpus": 0},
        {"cpus": True},
        {"cpus": float("nan")},
        {"cpus": float("inf")},
        {"cores": 4},
        {"io_read_bytes_per_s": 1024},
        {"io_write_bytes_per_s": "1MiB"},
    ],
)
def test_anything_else_is_refused(limits: object) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({**DOCUMENT, "limits": limits})


def test_the_order_of_a_server_that_knows_of_no_limits_is_without() -> None:
    assert msgspec.convert(ORDER, Order).limits == PartLimits()


def test_limits_cross_the_wire() -> None:
    limits = PartLimits(memory_bytes=1 << 30, pids=64, cpus=2.5, io_read_bytes_per_s=1 << 20, io_write_bytes_per_s=7)
    assert msgspec.convert({**ORDER, "limits": msgspec.to_builtins(limits)}, Order).limits == limits


def test_secrets_are_names_each_once_and_no_paths() -> None:
    assert JobSpec.model_validate({**DOCUMENT, "secrets": ["wandb", "hf-token"]}).secrets == ("wandb", "hf-token")
    for wrong in (["wandb", "wandb"], ["../wandb"], ["a/b"], [""], [".hidden"], "wandb", [f"s{n}" for n in range(33)]):
        with pytest.raises(ValidationError):
            JobSpec.model_validate({**DOCUMENT, "secrets": wrong})
