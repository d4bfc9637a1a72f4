"""The lint of words: what it finds, what it leaves, and that its numbers only fall."""

import json
from pathlib import Path

import pytest

from tools.words.constants import constants_of, with_two_values
from tools.words.findings import ROOT, Finding, exempt_sentences
from tools.words.glossary import read_glossary
from tools.words.persons import normalised, pronouns_for_things
from tools.words.python_texts import python_definitions, python_texts
from tools.words.ratchet import BASELINE, counts_of, lower, read_baseline, risen
from tools.words.texts import File

CODE = '''
"""The module."""

LIMIT = 3  # why it is "three # not four"


class Row:
    told_at: int

    def save(self, held: str) -> None:
        """Store it."""
        self.ring_count = f"a # b {held} c"  # noqa: E501
        local = text("SELECT told FROM rows")
'''


def found_in(text: str) -> list[str]:
    return [match.group().lower() for match in read_glossary(ROOT).pattern.finditer(text)]


def test_a_phrase_is_found_in_any_case_and_across_a_line_break() -> None:
    assert found_in("Told once. The GPUs give\n    way.") == ["told", "give\n    way"]


def test_a_phrase_is_no_part_of_another_word() -> None:
    assert found_in("string, untold, told-off, families") == []


def test_every_refused_word_has_a_replacement() -> None:
    glossary = read_glossary(ROOT)
    assert all(glossary.phrases.values())
    assert all(glossary.parts.values())


def test_docstrings_comments_and_strings_are_texts_and_statements_of_sql_are_none() -> None:
    found = {text.text.strip(): text.line for text in python_texts(CODE)}
    assert found == {
        "The module.": 2,
        'why it is "three # not four"': 4,
        "Store it.": 11,
        "a # b": 12,
    }


def test_fields_parameters_and_constants_are_names_and_local_variables_are_none() -> None:
    names = {found.name for found in python_definitions(CODE)}
    assert names == {"LIMIT", "Row", "told_at", "save", "self", "held", "ring_count"}


def test_code_in_a_page_is_no_prose() -> None:
    page = "A `told_at` told\n```sh\nmuster told\n```\n[told](told.md)\n"
    assert [text.text.split() for text in File("docs/a.md", page).texts()] == [["A", "``", "told"], ["[told", "``"]]


def test_what_a_template_shows_is_text_and_its_code_is_none() -> None:
    template = '<p title="who told">{{ told.at }}{% if told %}It told.{% endif %}</p>{# Why it told. #}'
    assert [text.text.split() for text in File("a.html", template).texts()] == [
        ["It", "told."],
        ["Why", "it", "told."],
        ["who", "told"],
    ]


@pytest.mark.parametrize(
    "sentence",
    ["An operator who closes it", "people who write migrations", "the person for whom it is made"],
)
def test_a_pronoun_is_right_for_a_person(sentence: str) -> None:
    assert list(pronouns_for_things(sentence)) == []


@pytest.mark.parametrize("sentence", ["the GPU who fails", "Nobody holds the lock", "whoever of the ranks came first"])
def test_a_pronoun_is_refused_for_a_thing(sentence: str) -> None:
    assert len(list(pronouns_for_things(sentence))) == 1


def test_an_exempt_sentence_is_left() -> None:
    assert list(pronouns_for_things("Sign in first. Who are\nyou?", {"Who are you?"})) == []


def test_one_name_with_two_collections_is_found_and_numbers_are_left() -> None:
    one = list(constants_of("a.py", "OUT = {1}\nBATCH = 3\nSAME = (1, 2)\n"))
    other = list(constants_of("b.py", "OUT = {2}\nBATCH = 4\nSAME = (1,2)\n"))
    assert [(found.name, found.path) for found in with_two_values([*one, *other])] == [("OUT", "a.py"), ("OUT", "b.py")]


def test_a_number_above_the_baseline_is_a_rise_and_one_below_is_none() -> None:
    assert risen(
        {"phrase source told": 3, "phrase source bell": 1}, {"phrase source told": 2, "phrase source bell": 5}
    ) == {"phrase source told": 1}


def test_the_baseline_falls_with_the_counts_and_takes_a_new_word_as_it_is(tmp_path: Path) -> None:
    (tmp_path / BASELINE).parent.mkdir(parents=True)
    (tmp_path / BASELINE).write_text(json.dumps({"phrase source told": 5, "phrase source bell": 1}))
    assert lower(tmp_path, {"phrase source told": 3, "phrase source bell": 4, "phrase source anew": 2}) == 0
    assert read_baseline(tmp_path) == {"phrase source anew": 2, "phrase source bell": 1, "phrase source told": 3}


def test_a_word_that_reached_zero_stays_refused(tmp_path: Path) -> None:
    (tmp_path / BASELINE).parent.mkdir(parents=True)
    (tmp_path / BASELINE).write_text(json.dumps({"phrase source told": 1}))
    lower(tmp_path, {})
    lower(tmp_path, {"phrase source told": 2, "phrase tests told": 1})
    assert read_baseline(tmp_path) == {"phrase source told": 0, "phrase tests told": 0}


def test_a_moved_file_changes_no_count() -> None:
    before = counts_of([Finding("phrase", "source", "told", "muster/services/looks.py", 3)])
    assert counts_of([Finding("phrase", "source", "told", "control/jobs/preflight.py", 90)]) == before


def test_every_exempt_sentence_is_still_there() -> None:
    texts = " ".join(normalised(text) for text in _all_texts())
    assert [sentence for sentence in exempt_sentences(ROOT) if sentence not in texts] == []


def _all_texts() -> list[str]:
    if not exempt_sentences(ROOT):
        return []
    paths = [path for suffix in ("py", "md", "html") for path in ROOT.rglob(f"*.{suffix}")]
    ours = (path for path in paths if ".venv" not in path.parts)
    return [text.text for path in ours for text in File(str(path), path.read_text(encoding="utf-8")).texts()]
