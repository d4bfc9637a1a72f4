"""The form of a job: it has the fields of the schema, faults stand next to them, and it submits what it shows."""

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
import yaml
from hypothesis import given
from sqlalchemy import select

from console.job_fields import fields, groups
from console.job_form import document_of, is_kept, submission_of, texts_of
from console.job_templates import TEMPLATES, JobTemplate
from control.content import bundles
from control.content.manifests import reading_of
from muster.db.models import AuditEntry, Job
from muster.domain.ids import JobId
from muster.domain.job.file_schema import job_file_schema
from muster.domain.job.spec import JobSpec
from muster.domain.principals import Principal, Role
from tests.console.conftest import Console
from tests.console.test_plans import submit
from tests.domain.job.specifications import SPECIFICATIONS

HELLO = {"/name": "hello", "/program/script": "/srv/hello.py"}
FILLED: dict[str, Any] = {
    "name": "whole",
    "program": {
        "script": "/srv/train.py",
        "args": ["--rate", "0.1", "two words"],
        "env": {"MODE": "a=b", "EMPTY": ""},
        "container": {
            "image": "team/image",
            "mounts": [{"source": "/mnt/data", "read_only": False}],
        },
    },
    "shape": {"nodes": 2, "gpus_per_node": 4, "max_nodes": 4},
    "topology": {"required": "rack", "slices": [{"level": "rack", "ranks": 4}]},
    "layout": {"tp": 2, "dp": 4, "allow_tp_across_nodes": True},
    "node_labels": {"required": {"zone": ["a", "b"]}},
    "datasets": [{"name": "corpus", "path": "/mnt/data/corpus", "verify": "checksums"}],
    "secrets": ["hf-token", "keys"],
    "wall_time_s": 90.5,
    "on_hang": "hold",
    "labels": {"team": "vision and more"},
}


def test_each_field_of_the_schema_is_one_of_the_form() -> None:
    schema = job_file_schema()

    def leaves(shape: dict[str, Any], at: str) -> list[str]:
        text = json.dumps(shape)
        named = re.search(r'"\$ref": "#/\$defs/(\w+)"', text)
        inner = schema["$defs"].get(named[1], {}) if named and '"items"' not in text else shape
        if "properties" not in inner:
            return [at]
        return [leaf for name, each in inner["properties"].items() for leaf in leaves(each, f"{at}/{name}")]

    of_schema = {leaf for name, shape in schema["properties"].items() for leaf in leaves(shape, f"/{name}")}
    of_form = [each.pointer for group in groups() for each in group.fields]
    assert sorted(of_form) == sorted(of_schema - {"/$schema", "/variables", "/copied_from"})
    assert [each.pointer for each in fields() if not each.help] == [], "each says what it means"


def test_a_job_that_fills_the_form_is_the_job_that_the_form_makes() -> None:
    made = submission_of(document_of(texts_of(FILLED))).spec
    assert made == JobSpec.model_validate(FILLED, strict=False)
    assert is_kept(FILLED)


@given(document=SPECIFICATIONS)
def test_any_job_fills_the_form_and_is_made_again_or_noticed(document: dict[str, Any]) -> None:
    spec = JobSpec.model_validate(document, strict=False).model_dump(mode="json", exclude_defaults=True)
    texts = [text for text in _texts_in(spec) if text != text.strip() or not text or "\n" in text or "\r" in text]
    assert is_kept(spec) or texts, "what the form cannot hold is such a text"


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in (*value, *value.values()):
            yield from _texts_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts_in(each)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.key)
def test_a_template_lacks_a_bundle_or_a_digest_at_most(template: JobTemplate) -> None:
    texts = texts_of(template.document)
    texts["/program/container/image"] += "0" * 64 if template.key == "container" else ""
    texts["/program/bundle"] = "0" * 64 if texts["/program/script"] else ""
    assert submission_of(document_of(texts)).name == template.document["name"]


@pytest.mark.parametrize("program", [{"args": ["one\ntwo"]}, {"args": [""]}, {"env": {"A": "one\ntwo"}}])
def test_a_text_that_no_line_holds_is_noticed(seen: Console, program: dict[str, Any]) -> None:
    job_id = submit(seen, "odd", program={"script": "/srv/a.py", **program})
    assert "the form cannot hold as it is" in seen.text(f"/console/submit?begin={job_id}", "tenant_member")


def test_a_form_that_is_planned_shows_plan_and_file_and_stores_nothing(seen: Console) -> None:
    seen.fleet.beat()
    texts = {**HELLO, "/shape/gpus_per_node": "2", "/program/env": "A=1\r\nB=${x}"}
    answer = seen.post("/console/submit", "tenant_member", step="plan", **texts)
    assert answer.status_code == 200
    assert "It would start at once" in answer.text
    found = re.search(r'aria-label="The job as YAML">(.*?)</pre>', answer.text, re.DOTALL)
    assert found is not None
    assert yaml.safe_load(unescape(found[1])) == {
        "name": "hello",
        "tier": "on_demand",
        "shape": {"nodes": 1, "gpus_per_node": 2},
        "program": {"script": "/srv/hello.py", "env": {"A": "1", "B": "$${x}"}},
    }
    assert 'value="/srv/hello.py"' in answer.text, "what was typed stays"
    with seen.units.read() as session:
        assert session.scalars(select(Job)).all() == []


def test_the_file_is_downloaded_as_the_page_shows_it(seen: Console) -> None:
    answer = seen.post("/console/submit", "tenant_member", step="file", **HELLO, **{"/shape/gpus": "4"})
    assert answer.headers["content-disposition"] == 'attachment; filename="hello.yaml"'
    assert answer.text.startswith("# yaml-language-server: $schema=http://127.0.0.1/v1/schemas/job.json\n")
    assert yaml.safe_load(answer.text)["shape"] == {"gpus": 4}


@pytest.mark.parametrize(
    ("texts", "field", "words"),
    [
        ({"/name": ""}, "/name", "is missing"),
        ({"/program/script": ""}, "/program/script", "“Script” is missing: launcher torchrun runs it once a rank"),
        ({"/shape/nodes": "x"}, "/shape/nodes", "&#39;x&#39; is no whole number, such as 2"),
        ({"/shape/nodes": "2", "/shape/min_nodes": "3"}, "/shape/min_nodes", "“Elastic from” 3 is more than “Hosts”"),
        ({"/program/env": "A"}, "/program/env", "&#39;A&#39; is not NAME=VALUE"),
        ({"/program/env": "PATH=/bin"}, "/program/env", "these names are set by Muster or refused for safety: PATH"),
        ({"/datasets": "name=a size=1"}, "/datasets", "is not FIELD=VALUE with a field of: name, path"),
        ({"/datasets": "name=a path=b"}, "/datasets", "absolute"),
        ({"/topology/slices": "level=rack ranks=none"}, "/topology/slices", "is no whole number"),
        ({"/secrets": "hf-token"}, "/secrets", "there is no secret hf-token"),
        ({"/program/bundle": "0" * 64}, "/program/bundle", "the tenant has no bundle 000000000000"),
        ({"/tier": "gold"}, "/tier", "the policy defines"),
    ],
)
@pytest.mark.parametrize("step", ["plan", "submit"])
def test_what_is_wrong_stands_next_to_its_field(
    seen: Console, monkeypatch: pytest.MonkeyPatch, step: str, texts: dict[str, str], field: str, words: str
) -> None:
    monkeypatch.setattr("control.secrets.job_secrets._may_be_laid", lambda _session: False)
    answer = seen.post("/console/submit", "tenant_member", step=step, **{**HELLO, **texts})
    assert answer.status_code == 422
    html_id = next(each.html_id for each in fields() if each.pointer == field)
    shown = re.search(rf'<p class="field-fault" id="{html_id}-fault">(.*?)</p>', answer.text, re.DOTALL)
    assert shown is not None, answer.text
    assert words in shown[1]
    marked = re.search(rf'id="{html_id}" name="{field}" aria-describedby="([^"]*)" aria-invalid="true"', answer.text)
    assert marked is not None
    assert f"{html_id}-fault" in marked[1]
    with seen.units.read() as session:
        assert session.scalars(select(Job)).all() == []


def test_all_faults_are_stated_at_once(seen: Console) -> None:
    texts = {**HELLO, "/shape/nodes": "0", "/wall_time_s": "-1", "/restart/max_restarts": "1000"}
    answer = seen.post("/console/submit", "tenant_member", step="plan", **texts)
    assert answer.text.count('aria-invalid="true"') == 3


def test_a_form_that_is_sent_twice_is_one_job_and_changed_it_is_another(seen: Console) -> None:
    texts = {**HELLO, "once": "0" * 32, "step": "submit"}
    first = seen.post("/console/submit", "tenant_member", **texts)
    assert first.status_code == 303
    where = first.headers["location"]
    assert seen.post("/console/submit", "tenant_member", **texts).headers["location"] == where
    other = seen.post("/console/submit", "tenant_member", **{**texts, "/name": "second"})
    assert other.headers["location"] != where
    assert "hello" in seen.text(where, "tenant_member")
    with seen.units.read() as session:
        assert sorted(session.scalars(select(Job.name))) == ["hello", "second"]
        entries = session.scalars(select(AuditEntry.actor).where(AuditEntry.action == "job.submit")).all()
    assert len(entries) == 2


def test_an_operator_submits_for_a_tenant_and_must_name_it(seen: Console) -> None:
    refused = seen.post("/console/submit", step="plan", **HELLO)
    assert refused.status_code == 422
    assert "an operator names the tenant that the job is for" in refused.text
    texts = {**HELLO, "/tenant_id": seen.fleet.tenant_id}
    planned = seen.post("/console/submit", step="plan", **texts)
    assert "muster job submit -f job.yaml --tenant " in planned.text
    assert seen.post("/console/submit", step="submit", **texts).status_code == 303
    foreign = seen.post("/console/submit", "tenant_member", step="submit", **HELLO, **{"/tenant_id": seen.other_tenant})
    assert foreign.status_code == 422


def test_a_copy_is_filled_in_and_names_its_original(seen: Console) -> None:
    original = submit(seen, "first", shape={"gpus_per_node": 2}, labels={"team": "vision"})
    page = seen.get(f"/console/submit?begin={original}", "tenant_member").text
    assert 'value="first"' in page
    assert ">team=vision</textarea>" in page
    assert f'name="copied_from" value="{original}"' in page
    texts = {**HELLO, "copied_from": original, "step": "submit"}
    where = seen.post("/console/submit", "tenant_member", **texts).headers["location"]
    with seen.units.read() as session:
        copied_id = JobId(where.partition("?")[0].rpartition("/")[2])
        assert session.get_one(Job, copied_id).copied_from == original
    assert seen.get(f"/console/submit?begin={original}", "other_tenant").status_code == 404
    foreign = seen.post("/console/submit", "other_tenant", **texts)
    assert foreign.status_code == 422
    assert "there is no such job" in foreign.text


def test_a_template_is_filled_in(seen: Console) -> None:
    page = seen.get("/console/submit?begin=hello", "tenant_member").text
    assert ">sh\n-c\necho hello from $(hostname)</textarea>" in page
    assert seen.get("/console/submit?begin=nothing", "tenant_member").status_code == 404


def test_a_tenant_chooses_from_its_own_complete_bundles(seen: Console) -> None:
    digests = {}
    for name, owner in (("mine", seen.fleet.tenant_id), ("foreign", seen.other_tenant)):
        member = Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=owner)
        digests[name] = _bundle(seen, member, f"{name}.py")
    page = seen.get("/console/submit", "tenant_member").text
    assert f'<option value="{digests["mine"]}"' in page
    assert digests["foreign"] not in page
    texts = {**HELLO, "/program/script": "mine.py", "/program/bundle": digests["mine"]}
    assert seen.post("/console/submit", "tenant_member", step="submit", **texts).status_code == 303
    foreign = seen.post("/console/submit", "other_tenant", step="submit", **texts)
    assert "the tenant has no bundle" in foreign.text


def _bundle(seen: Console, member: Principal, name: str) -> str:
    chunk = "ab" * 32
    manifest = json.dumps([1, [[name, 0, 3, [chunk]]]], separators=(",", ":")).encode()
    with seen.units.begin(member, bundles.BEGIN) as unit:
        begun = bundles.begin(unit, reading_of(manifest))
    with seen.units.begin(member, bundles.CONFIRM) as unit:
        bundles.confirm(unit, begun.folder.digest, [each.digest for each in begun.wanted])
    return begun.folder.digest


def test_a_reader_without_the_right_gets_no_form(seen: Console) -> None:
    assert seen.get("/console/submit", "auditor").status_code == 403
    assert seen.post("/console/submit", "auditor", step="submit", **HELLO).status_code == 403
    assert "Submit a job" not in seen.text("/console/jobs", "auditor")
    assert seen.post("/console/submit", "tenant_member", csrf="0", step="submit", **HELLO).status_code == 403
