"""The command at its edge, as real processes: exit codes, sentences, and never a trace."""

import json
import os
import subprocess
import sys

import pytest

from muster.cli.framework.exits import Exit
from tests.cli.command import JOB, Command
from tests.recorded_server import Answer, Requested, problem, serving


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, Exit.DENIED),
        (403, Exit.DENIED),
        (404, Exit.NOT_FOUND),
        (409, Exit.CONFLICT),
        (422, Exit.INVALID),
        (500, Exit.SERVER_FAULT),
    ],
)
def test_a_problem_ends_in_its_exit_code_with_words_and_advice(muster: Command, status: int, code: Exit) -> None:
    with serving(lambda _asked, _number: problem(status, "no")) as server:
        answer = muster.run("job", "show", "job_1", url=server.url)
    assert answer.returncode == code
    assert "it is no" in answer.stderr
    assert "do otherwise" in answer.stderr


def test_none_there_and_none_named_are_distinguished(cold_muster: Command) -> None:
    assert cold_muster.run("job", "list", url="http://127.0.0.1:9").returncode == Exit.UNREACHABLE
    unnamed = cold_muster.run("job", "list")
    assert unnamed.returncode == Exit.USAGE
    assert "muster up" in unnamed.stderr


def test_clear_text_beyond_loopback_is_refused_before_anything_is_sent(muster: Command) -> None:
    answer = muster.run("job", "list", url="http://192.0.2.1:1")
    assert answer.returncode == Exit.USAGE
    assert "https" in answer.stderr


def test_a_token_in_the_arguments_is_refused(muster: Command) -> None:
    answer = muster.run("job", "list", "--name", "mst_secret")
    assert answer.returncode == Exit.USAGE
    assert "process list" in answer.stderr


def test_a_relative_path_that_does_not_exist_is_refused_unless_hosts_have_it(muster: Command) -> None:
    """An absolute one may exist on the hosts alone, and a container's paths are the image's."""
    missing = ("--workdir", "data", "--python", "/envs/python", "--", "train.py", "--steps", "4")
    contained = ("--image", "gpt:1", "--", "train.py")
    with serving(lambda _asked, _number: Answer(201, JOB)) as server:
        refused = muster.run("job", "submit", *missing, url=server.url)
        warned = muster.run("job", "submit", "--no-bundle", *missing, url=server.url)
        calm = muster.run("job", "submit", *contained, url=server.url)
    assert refused.returncode == Exit.USAGE
    assert "there is no script" in refused.stderr
    assert "--no-bundle" in refused.stderr
    assert (warned.returncode, calm.returncode) == (0, 0)
    lines = [line for line in warned.stderr.splitlines() if line.startswith("warning: ")]
    assert [line.split(";")[0] for line in lines] == [
        "warning: script train.py does not exist here",
        "warning: --workdir data does not exist here",
    ]
    assert calm.stderr == ""


def test_lists_fit_narrow_terminals_and_are_json_for_programs(muster: Command) -> None:
    with serving(lambda _asked, _number: Answer(200, {"items": [JOB], "next_cursor": None})) as server:
        narrow = muster.run("job", "list", url=server.url, COLUMNS="20", LANG="C", NO_COLOR="1")
        assert narrow.returncode == 0
        assert "\x1b" not in narrow.stdout
        assert json.loads(muster.run("job", "list", "--json", url=server.url).stdout) == [JOB]


def test_a_job_states_how_often_it_saves_and_why(muster: Command) -> None:
    interval = {
        "interval_s": 60,
        "bound": "none",
        "stall_s": 0.5,
        "save_s": 2,
        "step_s": 0.1,
        "mtbf_s": 3600,
        "num_gpus": 2,
    }
    attempt = {"number": 1, "state": "RUNNING", "cause": None, "proof": None, "stop_reason": None, "hosts": []}
    rest = {
        "state_reason": "",
        "spec": {"shape": {"nodes": 1, "gpus_per_node": 2}},
        "submitted_by": "",
        "next_try_at": None,
    }
    dropped = {"log_bytes": 1_500, "events": 0, "checkpoints": 0, "steps": 1}
    first = attempt | {"checkpoint_interval": interval, "dropped": dropped}
    job = JOB | rest | {"attempts": [first, attempt | {"number": 2}]}
    with serving(lambda _asked, _number: Answer(200, job)) as server:
        shown = muster.run("job", "show", "job_1", url=server.url)
    words = " ".join(shown.stdout.split())
    assert (
        "attempt 1 RUNNING a checkpoint every 60 s, about 600 steps: which costs the least each stalls training"
        in words
    )
    left_out = "left out: 1,500 bytes of output (limits.attempt.log_bytes), 1 step (limits.attempt.steps)"
    assert words.endswith(f"in 1 h {left_out} attempt 2 RUNNING"), "of an older server's attempt nothing is known"


def test_an_empty_list_states_what_to_do(muster: Command) -> None:
    with serving(lambda _asked, _number: Answer(200, {"items": [], "next_cursor": None})) as server:
        assert "muster job submit" in muster.run("job", "list", url=server.url).stdout


def test_an_interrupted_submission_repeated_is_one_job(cold_muster: Command) -> None:
    def answer(_requested: Requested, number: int) -> Answer:
        return problem(500, "internal") if number == 0 else Answer(201, JOB)

    with serving(answer) as server:
        words = ("job", "submit", "--no-bundle", "--", "train.py")
        assert cold_muster.run(*words, url=server.url).returncode == Exit.SERVER_FAULT
        assert cold_muster.run(*words, url=server.url).returncode == 0
        assert cold_muster.run(*words, url=server.url).returncode == 0
        first, repeated, anew = (asked.headers["idempotency-key"] for asked in server.requested)
    assert first == repeated, "the same words again, unanswered: the same job"
    assert anew != repeated, "answered: the next one is a new job"


def test_a_submission_states_what_the_words_meant(muster: Command) -> None:
    with serving(lambda _asked, _number: Answer(201, JOB)) as server:
        limits = ("--wall-time", "10m", "--budget-gpu-hours", "2.5", "--within", "rack")
        words = ("--nodes", "2", "--gpus", "4", *limits, "--env", "A=b=c", "--no-bundle", "--", "train.py", "--lr", "1")
        assert muster.run("job", "submit", *words, url=server.url).returncode == 0
        spec = json.loads(server.requested[0].body)
    assert spec["shape"] == {"nodes": 2, "gpus_per_node": 4}
    assert (spec["wall_time_s"], spec["budget_gpu_hours"], spec["topology"]) == (600, 2.5, {"required": "rack"})
    assert spec["program"]["script"] == str(muster.folder / "train.py")
    assert spec["program"]["args"] == ["--lr", "1"]
    assert spec["program"]["env"] == {"A": "b=c"}


def test_datasets_are_sent_with_what_is_stated_of_them_and_shown_with_the_job(muster: Command) -> None:
    with serving(lambda _asked, _number: Answer(201, JOB)) as server:
        more = "val=/mnt/val,manifest=/mnt/val.json,verify=checksums"
        words = ("--dataset", "corpus=/mnt/corpus", "--dataset", more)
        assert muster.run("job", "submit", "--no-bundle", *words, "--", "train.py", url=server.url).returncode == 0
        assert muster.run("job", "submit", "--no-bundle", "--", "train.py", url=server.url).returncode == 0
        named, none = (json.loads(asked.body) for asked in server.requested)
    corpus = {"name": "corpus", "path": "/mnt/corpus"}
    val = {"name": "val", "path": "/mnt/val", "manifest": "/mnt/val.json", "verify": "checksums"}
    assert named["datasets"] == [corpus, val]
    assert "datasets" not in none, "a server that knows of none takes the job"
    spec = {"shape": {"nodes": 1, "gpus_per_node": 2}, "datasets": [corpus]}
    rest: dict[str, object] = {
        "state_reason": "",
        "submitted_by": "",
        "next_try_at": None,
        "attempts": [],
        "spec": spec,
    }
    job = JOB | rest
    with serving(lambda _asked, _number: Answer(200, job)) as server:
        assert "dataset corpus: /mnt/corpus" in muster.run("job", "show", "job_1", url=server.url).stdout


def test_limits_are_sent_in_bytes_and_only_where_one_is_given(muster: Command) -> None:
    with serving(lambda _asked, _number: Answer(201, JOB)) as server:
        words = ("--memory", "1.5GiB", "--pids", "4096", "--cpus", "2.5", "--disk-reads", "500MiB")
        assert muster.run("job", "submit", "--no-bundle", *words, "--", "train.py", url=server.url).returncode == 0
        assert muster.run("job", "submit", "--no-bundle", "--", "train.py", url=server.url).returncode == 0
        limited, free = (json.loads(asked.body) for asked in server.requested)
    assert limited["limits"] == {
        "memory_bytes": 1_610_612_736,
        "pids": 4096,
        "cpus": 2.5,
        "io_read_bytes_per_s": 524_288_000,
    }
    assert "limits" not in free


def test_a_release_is_queried_with_its_reason(muster: Command) -> None:
    with serving(
        lambda _asked, _number: Answer(200, JOB | {"state": "QUEUED", "state_reason": "released from hold"})
    ) as server:
        released = muster.run("job", "release", "job_1", "--reason", "mended", url=server.url)
        assert (server.requested[0].path, json.loads(server.requested[0].body)) == (
            "/v1/jobs/job_1/release",
            {"reason": "mended"},
        )
    assert "QUEUED" in released.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--wall-time", "soon"),
        ("--env", "novalue"),
        ("--nodes", "0"),
        ("--memory", "64"),
        ("--cpus", "0"),
        ("--disk-writes", "1/s"),
        ("--dataset", "/mnt/corpus"),
        ("--dataset", "corpus=mnt/corpus"),
        ("--dataset", "corpus=/mnt/corpus,check=all"),
        ("--dataset", "corpus=/mnt/corpus,verify"),
    ],
)
def test_words_that_mean_nothing_are_a_usage_fault(muster: Command, words: tuple[str, str]) -> None:
    answer = muster.run("job", "submit", "--no-bundle", *words, "--", "x.py", url="http://127.0.0.1:9")
    assert answer.returncode == Exit.USAGE
    assert answer.stderr


def test_a_reader_that_went_away_is_no_fault(muster: Command) -> None:
    many = [JOB | {"id": f"job_{number}"} for number in range(200)]
    with serving(lambda _asked, _number: Answer(200, {"items": many, "next_cursor": None})) as server:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(muster.folder),
            "MUSTER_API_URL": server.url,
            "MUSTER_API_KEY_FILE": str(muster.key_file),
        }
        line = f"{sys.executable} -m muster job list --limit 200 --json | head -n 1"
        answer = subprocess.run(
            ["/bin/sh", "-c", line], env=environment, capture_output=True, text=True, check=False, timeout=110
        )
    assert answer.stdout.startswith("[")
    assert answer.stderr == ""


def test_a_script_that_stops_at_faults_goes_on_where_a_reader_had_enough() -> None:
    line = f"set -o pipefail; {sys.executable} -m muster exit-codes | true"
    answer = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, check=False, timeout=110)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_the_exit_codes_are_listed(muster: Command) -> None:
    assert "20  job failed" in muster.run("exit-codes").stdout


def test_wrong_settings_are_all_stated(cold_muster: Command) -> None:
    answer = cold_muster.run("migrate", MUSTER_API_PORT="0", MUSTER_NONSENSE="1")
    assert answer.returncode == Exit.USAGE
    assert "MUSTER_API_PORT" in answer.stderr
    assert "MUSTER_NONSENSE" in answer.stderr


def test_an_id_is_never_cut_in_a_table(muster: Command) -> None:
    cordon = {
        "id": "cdn_01m7yvc10031529q2cqqjreg4q",
        "owner": "key:local-operator",
        "reason": "its links are down " * 3,
    }
    where = {"node_id": None, "gpu_uuid": "GPU-51300000-0003-4000-8000-000000000000", "created_at": JOB["created_at"]}
    with serving(lambda _asked, _number: Answer(200, {"items": [cordon | where], "next_cursor": None})) as server:
        said = muster.run("cordon", "list", url=server.url).stdout
    assert cordon["id"] in said
    assert "…" not in said
    assert all(len(line) <= 80 for line in said.splitlines())


def test_whoever_waits_for_a_job_on_hold_is_reported_that_it_waits_for_a_person(muster: Command) -> None:
    held = JOB | {"state": "HELD", "state_reason": "5 launches failed in a row"}
    with serving(lambda _asked, _number: Answer(200, held)) as server:
        answer = muster.run("job", "wait", "job_1", "--timeout", "2s", url=server.url)
    assert answer.returncode == Exit.FAILED
    assert answer.stderr.count("HELD: 5 launches failed in a row\nIt waits for a person: `muster job release") == 1


def test_what_a_submission_states_of_its_place(muster: Command) -> None:
    with serving(lambda _asked, _number: Answer(201, JOB)) as server:
        slices = ("--slice", "block=32", "--slice", "rack=16", "--balance", "rack", "--near", "rack")
        labels = ("--on-label", "gen=new|newest", "--not-on-label", "site=fra")
        layout = ("--layout", "pp=2,fsdp=4,tp=8", "--tp-across-nodes")
        words = ("--total-gpus", "64", *slices, *labels, *layout, "--no-bundle", "--", "train.py")
        assert muster.run("job", "submit", *words, url=server.url).returncode == 0
        spec = json.loads(server.requested[0].body)
    assert spec["shape"] == {"gpus": 64}
    assert spec["topology"] == {
        "preferred": "rack",
        "balance": "rack",
        "slices": [{"level": "block", "ranks": 32}, {"level": "rack", "ranks": 16}],
    }
    assert spec["node_labels"] == {"required": {"gen": ["new", "newest"]}, "forbidden": {"site": ["fra"]}}
    assert spec["layout"] == {"pp": 2, "fsdp": 4, "tp": 8, "allow_tp_across_nodes": True}


def test_a_plan_states_how_ranks_would_stand_and_an_older_server_reports_none(muster: Command) -> None:
    hosts = [{"node_id": f"n{rank}", "node_name": f"gpu-{rank}", "node_rank": rank, "gpus": ["a"]} for rank in (0, 1)]
    plain = {"outcome": "starts", "why": None, "binding": None, "starts_at": "2026-01-01T00:00:00Z", "num_ahead": 0}
    older = {**plain, "earliest_at": None, "latest_at": None, "hosts": hosts, "victims": [], "changes": []}
    groups = [{"dimension": "pp", "level": "rack", "num_groups": 2, "num_together": 2}]
    with serving(lambda _asked, _number: Answer(200, older)) as server:
        before = muster.run("job", "plan", url=server.url).stdout.splitlines()
    told = {**older, "groups": groups, "rails": {"rails": [3], "num_hosts": 1}}
    with serving(lambda _asked, _number: Answer(200, told)) as server:
        after = muster.run("job", "plan", url=server.url).stdout.splitlines()
    assert after[: len(before)] == before
    assert after[len(before)] == "  each pipeline has one rack"
    assert "local ranks are on rails 3 on 1 of 2 hosts" in after[len(before) + 1]


def test_a_dry_run_of_a_submission_is_the_plan_of_the_same_job(muster: Command) -> None:
    plan = {"outcome": "waits", "why": "no host has 16 GPUs", "binding": None, "starts_at": None, "num_ahead": 0}
    told: dict[str, object] = {
        **plan,
        "earliest_at": None,
        "latest_at": None,
        "hosts": [],
        "victims": [],
        "changes": [],
    }
    shape = ("--nodes", "2", "--gpus", "16", "--name", "train")
    with serving(lambda _asked, _number: Answer(200, told)) as server:
        planned = muster.run("job", "plan", *shape, url=server.url)
        tried = muster.run("job", "submit", "--dry-run", *shape, "--", "/srv/train.py", url=server.url)
        first, second = server.requested
    assert (tried.returncode, tried.stdout) == (planned.returncode, planned.stdout)
    assert "no host has 16 GPUs" in tried.stdout
    assert (first.path, second.path) == ("/v1/job-plans", "/v1/job-plans")
    asked = json.loads(second.body)
    assert json.loads(first.body).items() <= {**asked, "program": None}.items()


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("--total-gpus", "8", "--nodes", "2"), "leave out --nodes"),
        (("--slice", "rack"), "is not NAME=NUMBER"),
        (("--layout", "ep=2"), "'--layout': 'ep' is no degree"),
        (("--tp-across-nodes",), "it needs a --layout: give one too"),
        (("--on-label", "gen="), "is not NAME=VALUE"),
        (("--layout", f"tp={'9' * 5000}"), "'--layout': tp=999999999999999… is no number of at most 15 digits"),
        (("--wall-time", f"{'9' * 400}d"), "is more than a hundred years"),
    ],
)
def test_a_place_that_means_nothing_is_refused_before_anything_is_queried(
    muster: Command, words: tuple[str, ...], reported: str
) -> None:
    found = muster.run("job", "submit", "--no-bundle", *words, "--", "train.py", url="http://127.0.0.1:9")
    assert found.returncode == Exit.USAGE
    assert reported in " ".join(found.stderr.replace("│", " ").split())
