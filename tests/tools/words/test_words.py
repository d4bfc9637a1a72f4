"""The lint of words: what it finds, what it leaves out, and that one finding fails it."""

from pathlib import Path

import pytest

from tools.git import git
from tools.words import __main__ as words
from tools.words.__main__ import line_of
from tools.words.constants import constants_of, with_two_values
from tools.words.findings import EXEMPT, ROOT, Finding, Report, exempt_sentences, report_of
from tools.words.glossary import GLOSSARY, NAMES, PHRASES, read_glossary
from tools.words.persons import normalised, pronouns_for_things
from tools.words.python_texts import python_definitions, python_texts
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


def test_the_help_of_make_is_text_and_other_recipes_are_none() -> None:
    makefile = "help:  # why\n\t@echo 'make a  it told'\na:\n\t@told\n"
    assert [text.text.strip() for text in File("Makefile", makefile).texts()] == ["why", "make a  it told"]


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


def test_a_text_of_another_program_is_left_out_for_phrases_and_only_as_a_whole(tmp_path: Path) -> None:
    text = "failure detected by watchdog at work sequence id"
    assert text in exempt_sentences(ROOT)
    (tmp_path / EXEMPT).parent.mkdir(parents=True)
    (tmp_path / GLOSSARY).parent.mkdir()
    (tmp_path / GLOSSARY).write_text(
        f"{PHRASES}\n\n| phrase | say instead |\n|---|---|\n| at work | running |\n\n"
        f"{NAMES}\n\n| part | say instead |\n|---|---|\n| told | reported |\n"
    )
    (tmp_path / "a.py").write_text(f'LOGGED = "{text}"\nOUR_TEXT = "{text}: 4"\n')
    git(tmp_path, "init", "--quiet")
    found = {}
    for exempt in ("", f"# Why.\n{text}\n"):
        (tmp_path / EXEMPT).write_text(exempt)
        report = report_of(tmp_path)
        found[exempt] = [(one.rule, one.key, one.line) for one in report.findings]
        assert report.words["source"] == 2 * 8
    assert list(found.values()) == [[("phrase", "at work", 1), ("phrase", "at work", 2)], [("phrase", "at work", 2)]]


def test_a_finding_is_shown_with_its_place_and_the_word_to_use() -> None:
    finding = Finding("phrase", "source", "told", "control/jobs/preflight.py", 90)
    line = line_of(finding, read_glossary(ROOT))
    assert line.startswith("control/jobs/preflight.py:90: told: ")
    assert "→ report, show" in line


@pytest.mark.parametrize(("arguments", "code"), [([], 1), (["control/"], 1), (["docs/"], 0), (["--count"], 0)])
def test_one_refused_word_fails_the_lint(
    arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("phrase", "source", "told", "control/jobs/preflight.py", 90)
    monkeypatch.setattr(words, "report_of", lambda _: Report([finding], {"source": 9}))
    assert words.main(arguments) == code
    assert ("preflight.py:90" in capsys.readouterr().out) is bool(code)


def test_every_exempt_sentence_is_still_there() -> None:
    texts = " ".join(normalised(text) for text in _all_texts())
    assert [sentence for sentence in exempt_sentences(ROOT) if sentence not in texts] == []


def _all_texts() -> list[str]:
    if not exempt_sentences(ROOT):
        return []
    paths = [path for suffix in ("py", "md", "html") for path in ROOT.rglob(f"*.{suffix}")]
    ours = (path for path in paths if ".venv" not in path.parts)
    return [text.text for path in ours for text in File(str(path), path.read_text(encoding="utf-8")).texts()]
