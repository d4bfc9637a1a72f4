"""Job files over the real API: submitted, exported, copied, tried again."""

import json
import re
from typing import Any

import jsonschema_rs
import pytest
import yaml
from sqlalchemy import select

from muster.cli.framework.exits import Exit
from muster.db.models import AuditEntry
from tests.api.conftest import Api
from tests.api.typed import Typed
from tests.api.typed import typed as typed  # noqa: PLC0414  # a fixture
from tests.docs.pages import DOCS

TRAIN = """\
# yaml-language-server: $schema=job.schema.json
variables:
  nodes: 1
  rate: 0.001
  run:

name: train-${run}
program:
  script: /srv/train.py
  args: [--rate, "${rate}", --home, "$${HOME}"]
  env:
    RUN: ${run}
    MODE: "1"
shape:
  nodes: ${nodes}
  gpus_per_node: 2
labels: {team: vision}
"""


def submitted(typed: Typed, *words: str, **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(typed.run("job", "submit", "--json", *words, **given).stdout)
    return found


def test_a_file_is_submitted_with_its_variables(typed: Typed) -> None:
    typed.write("train.yaml", TRAIN)
    job = submitted(typed, "-f", "train.yaml", "--var", "run=a7", "--var", "rate=3e-4")
    assert job["name"] == "train-a7"
    assert job["spec"]["program"]["args"] == ["--rate", "3e-4", "--home", "${HOME}"]
    assert job["spec"]["program"]["env"] == {"RUN": "a7", "MODE": "1"}
    assert job["spec"]["shape"]["nodes"] == 1
    assert job["spec"]["labels"] == {"team": "vision"}


def test_options_replace_fields_of_the_file_and_settings_those_of_options(typed: Typed) -> None:
    typed.write("train.yaml", TRAIN)
    options = ("--var", "run=a", "--name", "other", "--gpus", "1", "--tier", "spot", "--env", "MODE=2", "--env", "B=3")
    settings = ("--set", "labels.run=first", "--set", "shape.gpus_per_node=2", "--set", "restart={max_restarts: 0}")
    job = submitted(typed, "--file", "train.yaml", *options, *settings, "--", "/srv/other.py", "--steps", "3")
    spec = job["spec"]
    assert (spec["name"], spec["tier"], spec["shape"]["gpus_per_node"]) == ("other", "spot", 2)
    assert spec["program"]["env"] == {"RUN": "a", "MODE": "2", "B": "3"}
    assert (spec["program"]["script"], spec["program"]["args"]) == ("/srv/other.py", ["--steps", "3"])
    assert spec["labels"] == {"team": "vision", "run": "first"}
    assert spec["restart"]["max_restarts"] == 0


def test_a_field_that_cannot_stay_with_an_option_is_replaced(typed: Typed) -> None:
    """A command for a script, a sum of GPUs for hosts, a virtual environment for a container."""
    contained = {"script": "train.py", "container": {"image": "gpt:1"}}
    typed.write("job.json", json.dumps({"name": "a", "program": contained, "shape": {"nodes": 1, "gpus_per_node": 1}}))
    words = ("-f", "job.json", "--command", "--total-gpus", "2", "--venv", "/envs/mine", "--", "mpirun", "a")
    spec = submitted(typed, *words)["spec"]
    assert (spec["program"]["launcher"], spec["program"]["argv"]) == ("command", ["mpirun", "a"])
    assert (spec["program"]["script"], spec["program"]["container"]) == (None, None)
    assert spec["shape"]["gpus_per_node"] == 2
    kept = submitted(typed, "-f", "-", "--image", "gpt:2", stdin='{"name": "a", "program": {"script": "/a.py", '
                     '"container": {"image": "gpt:1", "mounts": [{"source": "/data"}]}}}')  # fmt: skip
    container = kept["spec"]["program"]["container"]
    assert (container["image"], [mount["source"] for mount in container["mounts"]]) == ("gpt:2", ["/data"])


def test_a_relative_script_is_next_to_the_file(typed: Typed) -> None:
    typed.write("jobs/train.py", "pass")
    typed.write("jobs/job.yaml", "name: a\nprogram: {script: train.py}\n")
    spec = submitted(typed, "--no-bundle", "-f", "jobs/job.yaml")["spec"]
    assert spec["program"]["script"] == str(typed.folder / "jobs" / "train.py")
    typed.write("lost.yaml", "name: a\nprogram: {script: nowhere.py}\n")
    said = typed.run("job", "submit", "--no-bundle", "-f", "lost.yaml").stderr
    assert "warning: program.script nowhere.py does not exist here" in said
    assert "there is no script" in typed.run("job", "submit", "-f", "lost.yaml", code=Exit.USAGE).stderr


FAULTS = {
    "a key twice": ("name: a\nname: b\n", ["'name' appears twice", "line 2"]),
    "not YAML": ("name: [", ["cannot be read as YAML"]),
    "a list": ("- a\n", ["holds no mapping"]),
    "two jobs": ("name: a\n---\nname: b\n", ["holds 2 documents"]),
    "nothing": ("", ["holds no mapping"]),
    "a date": ("name: a\nlabels: {day: 2026-01-01}\n", ["labels.day: is a date: write it in quotes"]),
    "wrong fields": (
        "name: A b\nprogram:\n  script: /a.py\n  argz: 1\nshape:\n  nodes: '4'\nlabels: {a: 1}\n",
        [
            "line 1, name: must be 1 to 63 of a-z",
            "line 4, program.argz: there is no such key; did you mean argv?",
            "line 6, shape.nodes: must be a whole number",
            "line 7, labels.a: must be text: write it in quotes",
        ],
    ),
    "left out": ("name: a\n", ["line 1, program: is missing"]),
    "rules between fields": (
        "name: a\nprogram:\n  script: /a.py\n  argv: [x]\n",
        ["line 2, program: launcher torchrun takes `script` and `args`, not `argv`"],
    ),
    "variables": (
        'variables: {a: }\nname: x-${a}\nprogram:\n  script: /a.py\n  args: ["${b}", "${a}", "${b}"]\n',
        ["2 variables have no value: a (line 2, 5), b (line 5)", "--var a=…"],
    ),
    "half a variable": ("name: ${a b}\n", ["line 1: '${a b}' begins with no variable", "Write $${ for the text ${."]),
    "a variable of many values": ("variables: {a: [1]}\nname: x\n", ["line 1: the variable a is a list"]),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_names_file_line_field_and_what_is_accepted(typed: Typed, kind: str) -> None:
    text, expected = FAULTS[kind]
    typed.write("job.yaml", text)
    said = typed.run("job", "submit", "-f", "job.yaml", code=Exit.INVALID).stderr
    assert "job.yaml" in said
    for words in expected:
        assert words in " ".join(said.split())
    assert typed.requested == [], "it is found before anything is sent"


def test_what_the_server_refuses_has_its_line_too(typed: Typed) -> None:
    typed.write("job.yaml", "name: a\nprogram: {script: /a.py}\ntier: golden\n")
    said = typed.run("job", "submit", "-f", "job.yaml", code=Exit.INVALID).stderr
    assert "line 3, tier: the policy defines:" in said
    optional = typed.run("job", "submit", "-f", "job.yaml", "--tier", "silver", code=Exit.INVALID).stderr
    assert "tier (from an option): the policy defines:" in optional


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-f", "none.yaml"), "none.yaml: cannot be read"),
        (("-f", "--gpus", "2", "--", "train.py"), "To follow its logs write --follow."),
        (("-f", "train.py"), "`muster job submit --follow -- train.py` submits and follows it."),
        ((), "neither a program nor a job file"),
        (("--var", "a=1", "--", "train.py"), "Give --file too"),
        (("-f", "good.yaml", "--var", "steps=1"), "has no such variable; it has nodes, rate, run"),
        (("-f", "good.yaml", "--var", "1=1"), "is not NAME=VALUE"),
        (("-f", "good.yaml", "--var", "run"), "where it is not set"),
        (("-f", "good.yaml", "--var", "run=a", "--command"), "Give them after --"),
        (("-f", "good.yaml", "--var", "run=a", "--set", "labels"), "is not FIELD=VALUE"),
        (("-f", "good.yaml", "--var", "run=a", "--set", "name.first=x"), "name has no fields"),
        (("-f", "good.yaml", "--var", "run=a", "--set", "name=["), "is no YAML"),
    ],
)
def test_words_that_do_not_fit_are_refused_with_what_does(typed: Typed, words: tuple[str, ...], expected: str) -> None:
    typed.write("train.py", "pass")
    typed.write("good.yaml", TRAIN)
    said = typed.run("job", "submit", *words, code=Exit.USAGE).stderr
    assert expected in " ".join(re.sub("[│╭╮╰╯─]", " ", said).split())
    assert typed.requested == []


def test_variables_come_from_files_options_and_a_named_one_of_the_environment(typed: Typed) -> None:
    """An option goes before a file; the environment is read for a name alone; a value is never looked into."""
    typed.write("train.yaml", TRAIN)
    typed.write("shared.yaml", "run: shared\nrate: 5\nunused: 1\n")
    job = submitted(typed, "-f", "train.yaml", "--vars", "shared.yaml", "--var", "run=${rate}-$(id)", "--name", "a")
    assert job["spec"]["program"]["env"]["RUN"] == "${rate}-$(id)"
    assert job["spec"]["program"]["args"][1] == "5"
    named = submitted(typed, "-f", "train.yaml", "--var", "run", run="of-env")
    assert named["name"] == "train-of-env"
    typed.run("job", "submit", "-f", "train.yaml", code=Exit.INVALID, run="of-env")


def test_a_value_without_quotes_is_read_as_if_it_were_written_there(typed: Typed) -> None:
    typed.write("train.yaml", TRAIN)
    said = typed.run("job", "submit", "-f", "train.yaml", "--var", "run=7", code=Exit.INVALID).stderr
    assert "line 12, program.env.RUN: must be text" in said
    typed.write("text.yaml", 'run: "7"\n')
    job = submitted(typed, "-f", "train.yaml", "--vars", "text.yaml", "--var", "nodes=1")
    assert job["spec"]["program"]["env"]["RUN"] == "7"


def test_an_exported_job_submitted_again_is_equal(typed: Typed) -> None:
    typed.write("train.yaml", TRAIN)
    first = submitted(typed, "-f", "train.yaml", "--var", "run=a")
    written = typed.run("job", "export", first["id"]).stdout
    assert written.startswith(f"# yaml-language-server: $schema={typed.url}/v1/schemas/job.json\n# {first['id']},")
    for words in ((), ("--whole",), ("--json",)):
        again = submitted(typed, "-f", "-", stdin=typed.run("job", "export", *words, first["id"]).stdout)
        assert again["spec"] == first["spec"]
        assert again["id"] != first["id"]


def test_a_copy_differs_in_what_was_given_and_names_its_original(typed: Typed, api: Api) -> None:
    first = submitted(typed, "--gpus", "2", "--env", "A=1", "--", "/srv/train.py", "--steps", "3")
    words = ("--gpus", "1", "--env", "B=2", "--set", "labels.run=second")
    copied = json.loads(typed.run("job", "copy", first["id"], *words, "--json").stdout)
    assert copied["copied_from"] == first["id"]
    expected = {**first["spec"], "labels": {"run": "second"}}
    expected["shape"] = {**first["spec"]["shape"], "gpus_per_node": 1}
    expected["program"] = {**first["spec"]["program"], "env": {"A": "1", "B": "2"}}
    assert copied["spec"] == expected
    shown = typed.run("job", "show", copied["id"]).stdout
    assert f"a copy of {first['id']}" in shown
    assert f"a copy of {first['id']}" in typed.run("job", "copy", first["id"]).stdout
    other = json.loads(typed.run("job", "copy", first["id"], "--json", "--", "/srv/b.py", "--steps", "4").stdout)
    assert other["spec"]["program"]["args"] == ["--steps", "4"]
    with api.units.begin(api.fleet.tenant, "job.read") as unit:
        entry = unit.session.scalars(select(AuditEntry).where(AuditEntry.subject_id == copied["id"])).one()
        assert entry.detail["copied_from"] == first["id"]


def test_a_cancelled_job_is_tried_again_as_it_was(typed: Typed) -> None:
    typed.write("train.yaml", TRAIN)
    first = submitted(typed, "-f", "train.yaml", "--var", "run=a")
    said = typed.run("job", "retry", first["id"], code=Exit.CONFLICT).stderr
    assert f"{first['id']} is QUEUED: only a job that FAILED or was CANCELLED" in said
    typed.run("job", "cancel", first["id"])
    planned = typed.run("job", "retry", first["id"], "--dry-run")
    assert "would" in planned.stdout
    again = json.loads(typed.run("job", "retry", first["id"], "--json").stdout)
    assert (again["spec"], again["copied_from"], again["state"]) == (first["spec"], first["id"], "QUEUED")
    assert json.loads(typed.run("job", "show", "-", "--json").stdout)["id"] == again["id"], "it is the last one"


def test_an_operator_tries_a_tenants_job_again_for_that_tenant(typed: Typed) -> None:
    first = submitted(typed, "--", "/srv/train.py")
    typed.run("job", "cancel", first["id"])
    again = json.loads(typed.run("job", "retry", first["id"], "--json", actor="operator").stdout)
    assert again["tenant_id"] == first["tenant_id"]


def test_the_original_of_a_copy_is_one_that_the_caller_sees(typed: Typed) -> None:
    first = submitted(typed, "--", "/srv/train.py")
    typed.run("job", "copy", first["id"], actor="other_tenant", code=Exit.NOT_FOUND)
    body = {"name": "a", "program": {"script": "/a.py"}, "copied_from": first["id"]}
    for actor, original in (("other_tenant", first["id"]), ("tenant_member", "job_none")):
        answer = typed.api.client.post(
            "/v1/jobs", json={**body, "copied_from": original}, headers=typed.api.headers(actor)
        )
        assert answer.status_code == 422
        assert answer.json()["errors"] == [
            {"pointer": "/copied_from", "code": "unknown_job", "detail": "there is no such job"}
        ]


def test_the_schema_is_served_and_printed_and_judges_files(typed: Typed) -> None:
    served = typed.api.client.get("/v1/schemas/job.json")
    schema = served.json()
    assert json.loads(typed.run("job", "schema").stdout) == schema
    validator = jsonschema_rs.Draft202012Validator(schema)
    assert list(validator.iter_errors(yaml.safe_load(TRAIN))) == []
    wrong = {"name": "a", "program": {"script": "/a.py"}, "shape": {"nodez": 1, "nodes": "four"}}
    found = {"/".join(map(str, error.instance_path)) for error in validator.iter_errors(wrong)}
    assert found == {"shape", "shape/nodes"}


def test_the_example_of_the_page_is_submitted(typed: Typed) -> None:
    page = (DOCS / "tenant" / "job-files.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(# yaml-language-server.*?)```", page, re.DOTALL)
    schema = typed.api.client.get("/v1/schemas/job.json").json()
    assert list(jsonschema_rs.Draft202012Validator(schema).iter_errors(yaml.safe_load(example))) == []
    typed.write("job.yaml", example)
    assert submitted(typed, "-f", "job.yaml", "--var", "run=first", "--nodes", "1", "--gpus", "1")["state"] == "QUEUED"
