"""YAML as people write it: a key stands once in a mapping, and what a mapping overrides stands again."""

import pytest
import yaml

from muster.cli.framework.yaml_loading import load_yaml


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: 2\na: 3", 3),
        ("jobs:\n  - {name: x, nodes: 1, name: y}", 2),
        ("a: 1\n'a': 2", 2),
        ("base: &base {a: 1}\nown:\n  <<: *base\n  b: 1\n  b: 2", 5),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(yaml.YAMLError, match=rf"the key '.+' appears twice: keep one\n.*line {line}, column"):
        load_yaml(text)


def test_what_a_mapping_takes_over_from_others_it_may_override() -> None:
    text = "deep: {list: [&two {<<: &one {a: 1, b: 1}, a: 2}]}\nown: {<<: *two, b: 3}\nboth: {<<: [*one, *two]}"
    assert load_yaml(text) == {
        "deep": {"list": [{"a": 2, "b": 1}]},
        "own": {"a": 2, "b": 3},
        "both": {"a": 1, "b": 1},
    }


def test_nothing_is_made_of_a_tag() -> None:
    with pytest.raises(yaml.YAMLError, match="could not determine a constructor"):
        load_yaml("!!python/object/apply:os.getcwd []")


def test_aliases_that_stand_for_a_billion_values_are_refused_before_they_are_written_out() -> None:
    levels = [f"l{number}: &l{number} [{', '.join([f'*l{number - 1}'] * 9)}]" for number in range(1, 10)]
    with pytest.raises(yaml.YAMLError, match="values, its aliases written out: 1,000,000 are the most"):
        load_yaml("\n".join(["l0: &l0 [x]", *levels]))
    assert load_yaml("&own [1, [2]]") == [1, [2]]
    assert load_yaml("") is None


def test_a_list_within_itself_is_read_for_others_to_refuse() -> None:
    found = load_yaml("own: &own [*own]")
    assert found["own"][0] is found["own"]
