"""What the launcher says is read strictly: a wrong word must not silently begin a training again."""

from pathlib import Path

import pytest
import torch

from muster.train.checkpoint.interval import IntervalRule
from muster.train.checkpoint.storage.places import S3Place
from muster.train.runtime.environment import Environment, Resume
from muster.train.runtime.faults import Faults
from muster.train.values.on_fault import ValueFaultRule


def test_without_a_launcher_there_is_one_rank_and_nothing_is_kept() -> None:
    assert Environment.of({}) == Environment()


def test_the_launchers_words() -> None:
    around = Environment.of(
        {
            "RANK": "3",
            "WORLD_SIZE": "4",
            "MUSTER_ATTEMPT_ID": "att_1",
            "MUSTER_FENCE": "4294967297",
            "MUSTER_CHECKPOINT_DIR": "/data/job_1",
            "MUSTER_TRAIN_SOCKET": "/run/s",
            "MUSTER_STOP_NOTICE_S": "2.5",
            "MUSTER_TRAIN_SYNCHRONOUS": "1",
            "MUSTER_NODES_RANGE": "1-4",
            "MUSTER_ON_VALUE_FAULT": "skip:2",
            "MUSTER_RESUME": '{"generation": "step-00000040/gen-1", "refuse": ["step-00000060/gen-1"], "newer": 1}',
        }
    )
    resume = Resume("step-00000040/gen-1", frozenset({"step-00000060/gen-1"}))
    assert around == Environment(
        rank=3,
        world_size=4,
        attempt_id="att_1",
        fence=4294967297,
        socket_path="/run/s",
        checkpoint_dir=Path("/data/job_1"),
        stop_notice_s=2.5,
        is_synchronous=True,
        nodes_range=(1, 4),
        on_value_fault=ValueFaultRule("skip", 2, 3),
        resume=resume,
    )


def test_a_store_goes_before_the_hosts_folder_and_secrets_are_found_by_name() -> None:
    around = Environment.of(
        {
            "MUSTER_CHECKPOINT_DIR": "/data/job_1",
            "MUSTER_CHECKPOINT_STORE": "s3://bucket/team/job_1",
            "MUSTER_CHECKPOINT_CREDENTIALS_FILE": "s3",
            "MUSTER_CHECKPOINT_KEY_FILE": "/etc/keys",
            "MUSTER_SECRETS_DIR": "/dev/shm/secrets",  # noqa: S108  # the supervisor's own
        }
    )
    assert around.checkpoint_place == S3Place("bucket", "team/job_1")
    assert around.checkpoint_credentials_file == Path("/dev/shm/secrets/s3")  # noqa: S108  # as above
    assert around.checkpoint_key_file == Path("/etc/keys")


def test_a_fault_in_a_file_needs_a_folder() -> None:
    around = Environment(checkpoint_store=S3Place("bucket", "job_1"), faults="flip_file@6")
    with pytest.raises(ValueError, match="flip_file needs checkpoints in a folder"):
        Faults(around, torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("MUSTER_CHECKPOINT_DIR", "s3://bucket/job_1", "must be a folder; an object store is MUSTER_CHECKPOINT_STORE"),
        ("MUSTER_CHECKPOINT_STORE", "bucket/job_1", "is no place in an object store: it must be s3://BUCKET/PREFIX"),
        ("MUSTER_CHECKPOINT_KEY_FILE", "keys", "names a secret, and this job has none"),
    ],
)
def test_a_place_that_cannot_be_is_refused_by_its_variable(name: str, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{why}"):
        Environment.of({name: text})


def test_since_when_each_attempt_is_tainted() -> None:
    text = '{"may_be_newer": true, "tainted_since_unix_ms": {"4294967297": 1000}}'
    resume = Environment.of({"MUSTER_RESUME": text}).resume
    assert resume == Resume(may_be_newer=True, tainted_since_unix_ms={4294967297: 1000})
    told = [resume.is_tainted(fence, at) for fence, at in ((4294967297, 999), (4294967297, 1000), (4294967298, 1000))]
    assert told == [False, True, False]


def test_since_when_each_attempt_is_overtaken() -> None:
    resume = Environment.of({"MUSTER_RESUME": '{"overtaken_since_unix_ms": {"4294967297": 1000}}'}).resume
    assert resume == Resume(overtaken_since_unix_ms={4294967297: 1000})
    told = [resume.is_overtaken(*each) for each in ((4294967297, 999), (4294967297, 1000), (4294967298, 1000))]
    assert told == [False, True, False]


@pytest.mark.parametrize("text", ["", "{}", '{"generation": null, "refuse": []}', '{"not_after_unix_ms": null}'])
def test_no_preference_is_no_limit(text: str) -> None:
    assert Environment.of({"MUSTER_RESUME": text}).resume == Resume()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RANK", "first"),
        ("WORLD_SIZE", "-1"),
        ("MUSTER_FENCE", "1.5"),
        ("MUSTER_NODES_RANGE", "4"),
        ("MUSTER_NODES_RANGE", "4-1"),
        ("MUSTER_ON_VALUE_FAULT", "retry"),
        ("MUSTER_STOP_NOTICE_S", "nan"),
        ("MUSTER_STOP_NOTICE_S", "soon"),
        ("MUSTER_TRAIN_SYNCHRONOUS", "yes"),
        ("MUSTER_RESUME", "{"),
        ("MUSTER_RESUME", "[]"),
        ("MUSTER_RESUME", '{"generation": "newest"}'),
        ("MUSTER_RESUME", '{"generation": 40}'),
        ("MUSTER_RESUME", '{"refuse": "step-00000040/gen-1"}'),
        ("MUSTER_RESUME", '{"refuse": [40]}'),
        ("MUSTER_RESUME", '{"not_after_unix_ms": "noon"}'),
        ("MUSTER_RESUME", '{"hold_s": "long"}'),
        ("MUSTER_RESUME", '{"may_be_newer": "yes"}'),
        ("MUSTER_RESUME", '{"tainted_since_unix_ms": [1]}'),
        ("MUSTER_RESUME", '{"tainted_since_unix_ms": {"first": 1}}'),
        ("MUSTER_RESUME", '{"tainted_since_unix_ms": {"1": "noon"}}'),
        ("MUSTER_RESUME", '{"overtaken_since_unix_ms": {"1": "noon"}}'),
    ],
)
def test_what_cannot_be_read_is_named(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=name):
        Environment.of({name: text})


def test_how_often_gpus_fail_is_the_control_planes_word() -> None:
    assert Environment.of({}).interval == IntervalRule()
    text = '{"failures_per_gpu_hour": 1e-4, "num_gpus": 16, "min_s": 60, "max_s": 600, "new": 1}'
    told = Environment.of({"MUSTER_CHECKPOINT_INTERVAL": text}).interval
    assert told == IntervalRule(1e-4, 16, 60, 600)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("often", "must be a JSON object"),
        ('{"min_s": "a minute"}', "min_s must be a number above 0"),
        ('{"num_gpus": 1.5}', "num_gpus must be a number above 0"),
        ('{"failures_per_gpu_hour": 0}', "failures_per_gpu_hour must be a number above 0"),
        ('{"failures_per_gpu_hour": NaN}', "failures_per_gpu_hour must be a number above 0"),
        ('{"min_s": 60, "max_s": 30}', "max_s must not be less than min_s"),
    ],
)
def test_an_interval_rule_that_cannot_be_read_is_named(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"MUSTER_CHECKPOINT_INTERVAL=.*{why}"):
        Environment.of({"MUSTER_CHECKPOINT_INTERVAL": text})
