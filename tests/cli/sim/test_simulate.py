"""``muster simulate``: a trace in, waits out; what is wrong with a trace is reported."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Command

TRACE = "submit_s,gpus,duration_s,vc\n0,24,100,a\n1,32,50,a\n2,8,90,b\n"


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    command = [Command.warm or sys.executable, "-m", "muster", "simulate", *words]
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_trace_is_played_and_its_result_written(tmp_path: Path, *, is_packed: bool) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_bytes(gzip.compress(TRACE.encode(), mtime=0) if is_packed else TRACE.encode())
    done = simulate(
        "--trace", str(trace), "--nodes", "4", "--nodes-per-rack", "2", "--policy", "easy", "--json", str(out)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 jobs: wait 33 s" in done.stdout
    assert "Simulated: nothing ran." in done.stdout
    found = json.loads(out.read_text())
    assert (found["mean_wait_s"], found["makespan_s"], found["starved"]) == (33.0, 150.0, 0)
    assert found["utilisation"] == pytest.approx((24 * 100 + 32 * 50 + 8 * 90) / (150 * 32))
    assert found["wait_by_gpus"][-1] == {
        "min_gpus": 32, "max_gpus": 63, "jobs": 1, "mean_wait_s": 99.0, "p95_wait_s": 99.0
    }  # fmt: skip
    assert [(own["tenant"], own["jobs"]) for own in found["by_tenant"]] == [("a", 2), ("b", 1)]
    assert (found["nodes_per_rack"], found["fragmentation"]["rack_sized_gangs"]) == (2, 0)
    assert "fairness between 2 tenants" in done.stdout
    assert {"p95_wait_s", "p95_jct_s", "fairness", "mean_jct_s", "wall_s", "seed", "policy"} <= set(found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"submit_s,gpus\n0,1\n", "the header lacks duration_s: the columns are submit_s, gpus, duration_s"),
        (b"", "the header lacks submit_s, gpus, duration_s"),
        (b"submit_s,gpus,duration_s\n", "the file has no row after the header"),
        (
            b"submit_s,gpus,duration_s\n0,99,1\n,,\n",
            "line 2: gpus=99: takes 13 nodes, and this fleet has 4: 32 GPUs at most; line 3:",
        ),
        (b"submit_s,gpus,duration_s\n\n0,1,1\n\n\n0,0,1\n", "trace.csv: line 6: gpus='0': must be a whole number"),
        (b"submit_s,gpus,duration_s\r\n\r\n0,0,1\r\n", "trace.csv: line 3: gpus='0'"),
        (
            b'submit_s,gpus,duration_s,note\n0,1,1,"a\nb"\n0,0,1,"c\n\nd"\n0,0,1,e\n',
            "trace.csv: line 4: gpus='0': must be a whole number, from 1 to this fleet's 32; line 7: gpus='0'",
        ),
        (b"submit_s,gpus,duration_s,gpus\n0,1,1,2\n", "the header has gpus twice: give each column once"),
        (b"submit_s,gpus,duration_s,vc\n0,1,1,a\x1b[2J\n", "line 2: vc='a\\x1b[2J': must be printable"),
        (b"submit_s,gpus,duration_s\n0,8,1,5\n", "line 2: has more fields than the header has columns"),
        (b'submit_s,gpus,duration_s,note\n0,8,1,a\n1,8,1,"b\n2,8,1,c\n', "is a quote left open?"),
        (b"\xff\xfe\x00", "no CSV in UTF-8"),
        (gzip.compress(TRACE.encode(), mtime=0)[:40], "cannot be read"),
    ],
)
def test_a_bad_trace_is_reported_by_line_and_column_and_leaves_nothing(
    tmp_path: Path, content: bytes, words: str
) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_bytes(content)
    done = simulate("--trace", str(trace), "--nodes", "4", "--json", str(out))
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert not out.exists()


def test_a_trace_may_come_through_a_pipe() -> None:
    words = [sys.executable, "-m", "muster", "simulate", "--trace", "/dev/stdin", "--nodes", "4", "--json", "-"]
    for content in (TRACE.encode(), gzip.compress(TRACE.encode(), mtime=0)):
        done = subprocess.run(words, check=True, input=content, capture_output=True, timeout=60)
        assert json.loads(done.stdout)["jobs"] == 3


def test_a_file_that_is_not_there_and_numbers_out_of_bounds(tmp_path: Path) -> None:
    assert "there is no such file" in simulate("--trace", str(tmp_path / "none"), "--nodes", "4").stderr
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    for words in (["--nodes", "0"], ["--nodes", "4", "--estimate-error", "0.5"], ["--nodes", "4", "--arrivals", "nan"]):
        done = simulate("--trace", str(trace), *words)
        assert done.returncode == 2, done.stderr


def test_nodes_fail_at_a_published_rate_and_the_result_states_what_it_cost(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_text("submit_s,gpus,duration_s\n" + "0,64,8640000\n" * 2)
    words = ("--trace", str(trace), "--nodes", "20", "--json", str(out), "--failures", "rsc-1", "--seed", "4")
    done = simulate(*words, "--checkpoint-stall", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nodes failed, jobs were interrupted" in done.stdout
    found = json.loads(out.read_text())
    assert found["failing"] == {
        "per_1000_node_days": 6.5, "repair_s": 86_400, "checkpoint_every_s": 3_600, "checkpoint_stall_s": 0,
        "restart_s": 300,
    }  # fmt: skip
    assert 5 <= found["interruptions"] <= found["failures"] <= 40
    assert found["lost_gpu_hours"]["checkpoints"] == 0 < found["lost_gpu_hours"]["work_done_again"]
    assert 0.9 < found["ettr"] < 1 > found["goodput"]
    simulate(*words, "--checkpoint-stall", "0", "--json", str(tmp_path / "again.json"))
    again = json.loads((tmp_path / "again.json").read_text())
    assert {**again, "wall_s": 0} == {**found, "wall_s": 0}, "the same seed, the same result"


def test_charts_are_drawn_into_a_folder_that_is_made(tmp_path: Path) -> None:
    trace, folder = tmp_path / "trace.csv", tmp_path / "some" / "plots"
    trace.write_text(TRACE)
    done = simulate("--trace", str(trace), "--nodes", "4", "--plots", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in folder.iterdir()) == [
        "fragmentation.svg", "lost-hours.svg", "queue-length.svg", "utilisation.svg", "waits-by-size.svg"
    ]  # fmt: skip
    assert all("<svg" in path.read_text() for path in folder.iterdir())


def test_what_is_no_folder_for_charts_is_stated_before_anything_is_written(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_text(TRACE)
    words = ("--trace", str(trace), "--nodes", "4", "--json", str(out), "--plots")
    for folder, code, said in ((trace, 2, "is no folder"), (trace / "below", 1, "cannot be written: Not a directory")):
        done = simulate(*words, str(folder))
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert said in done.stderr
        assert not out.exists()
    assert simulate("--scenario", "x", "--plots", str(tmp_path)).returncode == 2
    for failing in (("--failures", "rsc-1"), ("--failures", "nonsense"), ("--repair", "60"), ("--restart", "60")):
        assert simulate("--scenario", "x", *failing).returncode == 2, failing


def test_a_document_of_a_fleet_where_nothing_fails_is_json_that_all_read(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_text(TRACE)
    simulate("--trace", str(trace), "--nodes", "4", "--json", str(out))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(out.read_text(), parse_constant=refuse)
    assert (found["failures"], found["interruptions"], found["ettr"], found["reclaims"]) == (0, 0, 1, [])
    assert found["failing"]["per_1000_node_days"] == 0


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--failures", "-1"], "--failures '-1' is no rate"),
        (["--failures", "nan"], "Say 0 to 100,000 of 1,000 node-days, or rsc-1, rsc-2, llama-3."),
        (["--failures", "inf"], "is no rate"),
        (["--failures", "1e9"], "is no rate"),
        (["--failures", "rsc-3"], "--failures 'rsc-3' is no rate"),
        (["--failures", ""], "--failures '' is no rate"),
        (["--failures", "1", "--checkpoint-every", "nan"], "Invalid value for '--checkpoint-every'"),
        (["--failures", "1", "--checkpoint-every", "0"], "--checkpoint-every"),
        (["--failures", "1", "--checkpoint-stall", "-1"], "--checkpoint-stall"),
        (["--failures", "1", "--restart", "inf"], "--restart"),
        (["--failures", "1", "--repair", "x"], "--repair"),
        (["--checkpoint-every", "60"], "--checkpoint-every has no effect without failures"),
        (["--failures", "0", "--repair", "60"], "--repair has no effect without failures"),
    ],
)
def test_what_is_no_rate_of_failures_and_no_cost_of_them_is_stated(
    tmp_path: Path, words: list[str], reported: str
) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_text(TRACE)
    done = simulate("--trace", str(trace), "--nodes", "4", "--json", str(out), *words)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert reported in " ".join(done.stderr.split())
    assert not out.exists()


SCENARIOS = Path(__file__).parents[3] / "examples" / "scenarios"


def test_a_scenario_is_played_and_its_decisions_written(tmp_path: Path) -> None:
    out = tmp_path / "decisions.json"
    done = simulate("--scenario", str(SCENARIOS / "31-one-of-two-gangs.yaml"), "--json", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 s  one: placed on n0, n1, n2" in done.stdout
    assert "Simulated: nothing ran." in done.stdout
    found = json.loads(out.read_text())
    assert found["decisions"][0]["nodes"] == ["n0", "n1", "n2"]
    assert [one["kind"] for one in found["decisions"]] == ["placed", "placed", "waits"]


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, 3, "there is no such file"),
        ("- 1", 6, "holds no mapping"),
        ("about: x", 6, "topology: is missing"),
        ("{about: x, topology: {nodes: [{names: a0}]}, policy: {tiers: 3}}", 6, "policy.tiers: must be a mapping"),
        ('about: "\\ud800"', 6, "a text in it must not contain a lone surrogate"),
        ("about: x\nabout: y", 6, "the key 'about' appears twice: keep one"),
        ("{topology: {nodes: [{}]}}", 6, "topology.nodes.0.names: is missing\ndocs/scenarios.md has the form."),
        ('{topology: {nodes: [{names: a0}]}, "\\x1b[2J": 1}', 6, "\\x1b[2J: there is no such key; there are about,"),
    ],
)
def test_what_is_no_scenario_is_stated(tmp_path: Path, content: str | None, code: int, words: str) -> None:
    path = tmp_path / "scenario.yaml"
    if content is not None:
        path.write_text(content)
    done = simulate("--scenario", str(path), "--json", str(tmp_path / "out.json"))
    assert (done.returncode, words in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
    assert "\x1b" not in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_what_a_plan_costs_and_when_it_starts_is_stated_and_a_scenario_may_be_about_nothing(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(
        "topology: {nodes: [{names: a0}]}\n"
        "policy: {reclaim: {cap_fraction: 1.0}}\n"
        "jobs: {running: [{name: low, tier: spot, nodes: [a0], started_s: -7200}]}\n"
        "requests: [{at_s: 10, plan: {name: high, tier: reserved}}]\n"
    )
    done = simulate("--scenario", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    (planned, last) = done.stdout.splitlines()
    assert "10 s  high: planned on a0 of low for 58,640 GPU-s of work starting at 130 s (" in planned
    assert last == "Simulated: nothing ran."


def test_a_trace_and_a_scenario_exclude_each_other() -> None:
    assert simulate().returncode == 2
    for words in (("--nodes", "3"), ("--policy", "fifo"), ("--seed", "0"), ("--checkpoint-every", "60")):
        done = simulate("--scenario", "x", *words)
        assert (done.returncode, f"leave out {words[0]}." in done.stderr) == (2, True), done.stderr


def test_a_result_is_written_whole_or_not_at_all_and_never_over_what_is_read(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_text(TRACE)
    out.write_text("the last one")
    asked = ("--trace", str(trace), "--nodes", "4", "--json")
    assert "would overwrite what is read" in simulate(*asked, str(trace)).stderr
    assert "its folder does not exist" in simulate(*asked, str(tmp_path / "none" / "out.json")).stderr
    assert "it is a folder" in simulate(*asked, str(tmp_path)).stderr
    narrow = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", sys.executable, "-m", "muster", "simulate"]
    done = subprocess.run([*narrow, *asked, str(out)], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "cannot be written" in done.stderr) == (1, True), done.stderr
    assert (trace.read_text(), out.read_text()) == (TRACE, "the last one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "trace.csv"]
    assert simulate(*asked, str(out)).returncode == 0
    assert json.loads(out.read_text())["jobs"] == 3


TIERS = "submit_s,gpus,duration_s,tenant,tier\n0,32,5000,a,spot\n100,16,100,b,reserved\n200,8,300,c,\n"


def played(tmp_path: Path, *words: str, trace: str = TIERS) -> subprocess.CompletedProcess[str]:
    path, policy = tmp_path / "tiers.csv", tmp_path / "mine.yaml"
    path.write_text(trace)
    policy.write_text("queue: {backfill: conservative}\n")
    return simulate("--trace", str(path), "--nodes", "4", "--policy", str(policy), *words)


def test_a_trace_is_played_by_the_planner_under_a_policy_file(tmp_path: Path) -> None:
    done = played(tmp_path, "--json", "-", "--quota", "b/reserved=8:32", "--share", "a=2.5", "--wall-times", "2")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["policy"], found["wall_times"], found["jobs"]) == ("mine.yaml", "2", 3)
    assert [(one["tenant"], one["tier"], one["reclaims"]) for one in found["reclaims"]] == [("a", "spot", 1)]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--quota", "b/reserved"), "is no quota"),
        (("--quota", "b/gold=8"), "has no tier 'gold'"),
        (("--quota", "b/reserved=8:4"), "ceiling 4 is less"),
        (("--share", "a=0"), "is no share"),
        (("--wall-times", "0.5"), "a factor from 1 to 1000"),
        (("--wall-times", "2", "--estimate-error", "2"), "both say"),
        (("--failures", "rsc-1"), "not played under a policy file"),
        (("--quota", "b/reserved=0:8"), "never starts under this policy"),
    ],
)
def test_options_that_do_not_fit_a_policy_file_are_named(tmp_path: Path, words: tuple[str, ...], text: str) -> None:
    done = played(tmp_path, *words)
    assert done.returncode != 0
    assert text in " ".join(done.stderr.split())


def test_a_policy_is_a_rule_or_a_file_and_knows_the_tiers_of_the_trace(tmp_path: Path) -> None:
    for words, text in (
        (("--policy", "fair"), "neither a rule nor a file: the rules are fifo"),
        (("--policy", "easy", "--share", "a=2"), "knows no quotas"),
    ):
        done = played(tmp_path, *words)
        assert (done.returncode, text in " ".join(done.stderr.split())) == (2, True), done.stderr
    done = played(tmp_path, trace="submit_s,gpus,duration_s,tier\n0,8,10,gold\n")
    assert "has no tier 'gold', which the trace names" in " ".join(done.stderr.split())
