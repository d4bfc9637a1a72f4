"""Files that are no job, however they are made, are refused in a sentence."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.yaml_loading import placed_documents
from muster.cli.job.files.job_file import MOST_BYTES, read_job_file
from muster.cli.job.files.overrides import overridden, settings_of, with_settings
from muster.cli.job.files.variables import Filling, GivenVariables, Value, given_variables
from tests.domain.job.specifications import TEXTS

_LEVELS = [f"{name}: &{name} [{', '.join([f'*{below}'] * 10)}]" for below, name in ("ab", "bc", "cd", "de", "ef")]
ODD_FILES = {
    "a mapping within itself": (b"name: x\nlabels: &a {b: *a}\n", "holds a list or mapping within itself"),
    "a million values by aliases": (
        f"a: &a [{', '.join('x' * 10)}]\n{chr(10).join(_LEVELS)}\nname: x\n".encode(),
        "1,000,000 are the most",
    ),
    "nested too deeply": (b"[" * 5_000, "it is nested too deeply"),
    "not UTF-8": (b"name: \xff\n", "byte 6 is not UTF-8"),
    "too large": (b"#" * (MOST_BYTES + 1), "has more than 8 MiB"),
    "a NUL": (b'name: "a\\0"\n', "must not contain U+0000"),
    "a lone surrogate": (b'name: "\\ud800"\n', "must not contain a lone surrogate"),
    "binary": (b"name: !!binary aGk=\n", "name: is binary"),
    "an object of Python": (b"name: !!python/object/apply:os.getcwd []\n", "cannot be read as YAML"),
}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_job_is_refused(tmp_path: Path, kind: str) -> None:
    content, expected = ODD_FILES[kind]
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(CommandError) as refused:
        read_job_file(path, GivenVariables())
    assert refused.value.code == Exit.INVALID
    assert expected in str(refused.value)
    assert str(refused.value).startswith(str(path))


def test_a_file_of_variables_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vars.yaml"
    path.write_bytes(b"[" * 5_000)
    with pytest.raises(CommandError, match="it is nested too deeply"):
        given_variables([], [path])


def filled(text: str, **values: Value) -> Any:
    (found,) = placed_documents(text, Filling("job.yaml", GivenVariables(own=values)))
    return found.value


@given(text=TEXTS)
def test_a_value_never_becomes_more_than_one_scalar(text: str) -> None:
    """Whatever a variable holds, it adds no key, no item and no other variable."""
    found = filled('a: "${x}"\nb: [1, "${x}y", 2]\nc: ${x}\n', x=Value(text))
    assert found["a"] == text
    assert found["b"] == [1, f"{text}y", 2]
    assert not isinstance(found["c"], dict | list)
    assert list(found) == ["a", "b", "c"]


def test_a_node_that_an_alias_repeats_is_filled_once() -> None:
    assert filled("a: &a $${x}\nb: *a\nc: &c ['${x}']\nd: *c\n", x=Value("${x}")) == {
        "a": "${x}",
        "b": "${x}",
        "c": ["${x}"],
        "d": ["${x}"],
    }


@pytest.mark.parametrize(
    ("document", "options", "expected"),
    [
        ({"shape": {"gpus": 8}}, {"shape": {"nodes": 2}}, {"shape": {"nodes": 2}}),
        ({"shape": {"nodes": 2, "min_nodes": 1}}, {"shape": {"gpus": 8}}, {"shape": {"gpus": 8}}),
        ({"program": {"argv": ["a"], "python": "/p"}}, {"program": {"script": "/b"}},
         {"program": {"script": "/b", "python": "/p"}}),
        ({"layout": {"tp": 2, "pp": 2}}, {"layout": {"tp": 4}}, {"layout": {"tp": 4}}),
        ({"limits": {"pids": 1}}, {"limits": {"cpus": 2.0}}, {"limits": {"pids": 1, "cpus": 2.0}}),
        ({"secrets": ["a"]}, {"secrets": ["b"]}, {"secrets": ["b"]}),
    ],
)  # fmt: skip
def test_an_option_replaces_its_field_and_what_cannot_stand_next_to_it(
    document: dict[str, Any], options: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert overridden(document, options) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("labels={}", {"labels": {}, "items": [{"a": 1}]}),
        ("labels.b=3", {"labels": {"a.x": "1", "b": 3}, "items": [{"a": 1}]}),
        (r"labels.a\.x=two", {"labels": {"a.x": "two"}, "items": [{"a": 1}]}),
        ("items.0.a=null", {"labels": {"a.x": "1"}, "items": [{"a": None}]}),
        ("new.field=[1, {b: c}]", {"labels": {"a.x": "1"}, "items": [{"a": 1}], "new": {"field": [1, {"b": "c"}]}}),
    ],
)
def test_a_setting_replaces_the_whole_value_at_its_place(words: str, expected: dict[str, Any]) -> None:
    document = {"labels": {"a.x": "1"}, "items": [{"a": 1}]}
    assert with_settings(document, settings_of([words])) == expected
