"""``muster apply`` changes nothing where a document, a person or another change stands against it."""

import os
import pty
import subprocess
import threading
from typing import Any

import pytest

from muster.cli.framework.exits import Exit
from tests.api.conftest import Api
from tests.api.test_apply import POLICY, RATES, TREE, WHY, apply, get, tenants
from tests.api.typed import Typed
from tests.api.typed import typed as typed  # noqa: PLC0414  # a fixture

FAULTS = {
    "a kind that is none": ("kind: job\nversion: 1\n", ["there are the kinds policy, rates, tenant, quota, cordon"]),
    "no kind": ("name: a\n", ["line 1, kind: there are the kinds"]),
    "a later version": ("kind: tenant\nversion: 2\nname: a\n", ["line 2, version: must be 1, the version of a tenant"]),
    "a wrong field": (
        "kind: quota\nversion: 1\ntenant: other\ntier: spot\nceiling: 3\nguaranteed_gpus: few\n",
        ["line 5, ceiling: there is no such key; did you mean ceiling_gpus?", "line 6, guaranteed_gpus: must"],
    ),
    "rules between fields": (
        "kind: quota\nversion: 1\ntenant: other\ntier: spot\nguaranteed_gpus: 2\nceiling_gpus: 1\n",
        ["line 1, the whole: `guaranteed_gpus` 2 is more than `ceiling_gpus` 1"],
    ),
    "a key twice": ("kind: tenant\nkind: quota\n", ["the key 'kind' appears twice"]),
    "an object twice": ("kind: tenant\nversion: 1\nname: other\n", ["line 1, the whole: the tenant other is also in"]),
    "a tenant that is none": (
        "kind: quota\nversion: 1\ntenant: nowhere\ntier: golden\n",
        ["line 3, tenant: there is no tenant 'nowhere'", "line 4, tier: the policy defines: on_demand, reserved, spot"],
    ),
    "a department that is none": (
        "kind: tenant\nversion: 1\nname: a\nunder: b\n",
        ["line 4, under: there is no tenant 'b'"],
    ),
    "a circle": (
        "kind: tenant\nversion: 1\nname: a\nunder: b\n---\nkind: tenant\nversion: 1\nname: b\nunder: a\n",
        ["line 4, under: a, b stand under each other"],
    ),
    "places that are none": (
        "kind: cordon\nversion: 1\nnode: h9\nreason: x\n---\nkind: cordon\nversion: 1\ngpu: GPU-9\nreason: x\n",
        ["line 3, node: there is no node 'h9'", "line 8, gpu: there is no GPU 'GPU-9'"],
    ),
    "no place": ("kind: cordon\nversion: 1\nreason: x\n", ["takes `node` or `gpu`, one of them"]),
    "no policy": (
        "kind: policy\nversion: 1\ndocument:\n  contact:\n    heartbeat_s: often\n",
        ["line 5, document.contact.heartbeat_s: must be a number"],
    ),
    "no rate cards": (
        RATES.replace("EUR", "euro").replace("'1.1'", "1.1"),
        ["line 4, document.currency: String should match", 'must be a text such as "2.75"'],
    ),
    "prices of a tier that is none": (
        RATES.replace("tier: spot", "tier: golden"),
        ["line 6, document.cards.0.tier: the policy defines: on_demand, reserved, spot"],
    ),
    "more than the fleet has": (
        "kind: quota\nversion: 1\ntenant: other\ntier: reserved\nguaranteed_gpus: 999\n",
        ["quota other in reserved: /guaranteed_gpus: with 999 here"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_in_one_document_is_found_before_anything_is_changed(typed: Typed, kind: str) -> None:
    text, expected = FAULTS[kind]
    typed.write("docs/a.yaml", "kind: tenant\nversion: 1\nname: other\nweight: 3\n" if "999" not in text else "")
    typed.write("docs/b.yaml", text)
    said = " ".join(apply(typed, "-f", "docs", *WHY, code=Exit.INVALID).split())
    for words in expected:
        assert words in said
    assert "b.yaml" in said
    assert typed.changes() == []


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("-f", "none.yaml"), Exit.USAGE, "none.yaml: cannot be read"),
        (("-f", "empty"), Exit.USAGE, "empty: holds no file that ends in .json, .yaml, .yml"),
        (("-f", "nothing.yaml"), Exit.INVALID, "the files hold no document"),
        (("-f", "fleet.yaml", "--yes"), Exit.USAGE, "the changes need a --reason"),
        (("-f", "fleet.yaml", "--reason", "why"), Exit.USAGE, "nothing was changed: there is no terminal to ask at"),
    ],
)
def test_words_that_do_not_suffice_change_nothing(
    typed: Typed, words: tuple[str, ...], code: Exit, expected: str
) -> None:
    typed.write("fleet.yaml", TREE)
    typed.write("nothing.yaml", "# later\n")
    (typed.folder / "empty").mkdir()
    assert expected in " ".join(apply(typed, *words, code=code).split())
    assert typed.changes() == []


def test_each_change_needs_the_permission_of_its_operation(typed: Typed) -> None:
    typed.write("fleet.yaml", TREE)
    apply(typed, "-f", "fleet.yaml", *WHY, code=Exit.DENIED, actor="auditor")
    assert typed.changes() == []


def at_a_terminal(typed: Typed, answer: str, meanwhile: Any = None) -> tuple[int, str]:
    """Type the command at a terminal and answer its question, after ``meanwhile``. Return exit code and output."""
    key = typed.folder / "operator.key"
    key.write_text(typed.api.tokens["operator"])
    ours, theirs = pty.openpty()
    environment = {"MUSTER_API_URL": typed.url, "MUSTER_API_KEY_FILE": str(key), "HOME": str(typed.folder)}
    with subprocess.Popen(
        [typed.python, "-m", "muster", "apply", "-f", "fleet.yaml", "--reason", "asked"],
        cwd=typed.folder,
        env={"PATH": os.environ["PATH"], "COLUMNS": "100", **environment},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        kill = threading.Timer(100, process.kill)
        kill.start()
        said = b""
        while not said.endswith(b"[y/N]:"):
            said += (piece := process.stderr.read(1))
            assert piece, said
        if meanwhile is not None:
            meanwhile()
        os.write(ours, f"{answer}\n".encode())
        out, err = process.communicate()
        kill.cancel()
    os.close(ours)
    os.close(theirs)
    return process.returncode, (out + said + err).decode()


def test_a_person_at_a_terminal_decides(typed: Typed, api: Api) -> None:
    typed.write("fleet.yaml", TREE)
    code, said = at_a_terminal(typed, "n")
    assert (code, "nothing was changed, as you answered" in said) == (Exit.FAILED, True)
    assert "vision" not in tenants(api)
    code, said = at_a_terminal(typed, "y")
    assert code == 0
    assert "Make 3 changes?" in said
    assert "vision" in tenants(api)


def test_a_change_by_others_before_the_answer_is_reported(typed: Typed, api: Api) -> None:
    apply(typed, "-f", "-", *WHY, stdin=TREE)
    typed.write("fleet.yaml", TREE.replace("ceiling_gpus: 2", "ceiling_gpus: 1"))
    tenant_id = tenants(api)["vision"]["id"]

    def meanwhile() -> None:
        path = f"/v1/tenants/{tenant_id}/quotas/spot"
        body = {"ceiling_gpus": 5, "reason": "another person"}
        assert api.client.put(path, json=body, headers=api.headers("operator")).status_code == 200

    code, said = at_a_terminal(typed, "y", meanwhile)
    assert code == Exit.CONFLICT, said
    assert "nothing was changed: others changed quota vision in spot meanwhile" in said
    (quota,) = get(api, f"/v1/tenants/{tenant_id}/quotas")["items"]
    assert quota["ceiling_gpus"] == 5


def test_a_policy_that_another_one_replaces_meanwhile_is_refused_by_its_version(typed: Typed, api: Api) -> None:
    """The command has looked again already; the API holds the version (If-Match)."""
    apply(typed, "-f", "-", *WHY, stdin=POLICY)
    typed.write("policy.yaml", POLICY.replace("5", "6"))
    looked = []

    def overtaken(request: str) -> None:
        if request == "POST /v1/policy/check":
            looked.append(request)
        if request == "POST /v1/policies" and len(looked) == 2:
            body = {"document": {"contact": {"heartbeat_s": 7}}, "reason": "another person"}
            assert api.client.post("/v1/policies", json=body, headers=api.headers("operator")).status_code == 201

    typed.before_each = overtaken
    said = apply(typed, "-f", "policy.yaml", *WHY, code=Exit.CONFLICT)
    assert "policy the active version: " in said
    assert "changes made before it: 0 of 1" in " ".join(said.split())
    assert get(api, "/v1/policy")["document"]["contact"]["heartbeat_s"] == 7


def test_after_a_fault_in_the_middle_the_same_command_makes_the_rest(typed: Typed, api: Api) -> None:
    typed.write("fleet.yaml", TREE)

    def overtaken(request: str) -> None:
        if request.startswith("PUT ") and request.endswith("/quotas/spot"):
            typed.before_each = None
            answer = api.client.post(
                "/v1/policies",
                json={"document": {"tiers": {"on_demand": {"priority": 1}}}, "reason": "another person"},
                headers=api.headers("operator"),
            )
            assert answer.status_code == 201, answer.text

    typed.before_each = overtaken
    said = " ".join(apply(typed, "-f", "fleet.yaml", *WHY, code=Exit.INVALID).split())
    assert "quota vision in spot: " in said
    assert "changes made before it: 2 of 3" in said
    policy = {"document": {}, "reason": "as it was"}
    assert api.client.post("/v1/policies", json=policy, headers=api.headers("operator")).status_code == 201
    rest = apply(typed, "-f", "fleet.yaml", *WHY)
    assert "1 to create, 2 unchanged" in rest
    assert "no changes" in apply(typed, "-f", "fleet.yaml", *WHY)
