"""The reader of documents: what it types, and what it does not let pass."""

from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of, shows, undecided
from tests.docs.reader import DocumentError, Reader

PAGE = """\
Text.

```sh run
word=kept
export word
cd sub
```

```sh skip="needs a GPU"
exit 1
```

```console run
$ echo "$word" $(basename "$PWD")
kept sub
$ printf 'one\\ntwo\\nthree\\n'
one
…
th…e
```

```json
{"not": "typed"}
```
"""


def page(folder: Path, text: str) -> Path:
    (folder / "sub").mkdir()
    path = folder / "page.md"
    path.write_text(text)
    return path


def read(folder: Path, text: str) -> None:
    Reader(folder, patience_s=20).read(blocks_of(page(folder, text)))


def test_blocks_are_found_with_what_is_stated_of_them(tmp_path: Path) -> None:
    found = blocks_of(page(tmp_path, PAGE))
    assert [(block.language, block.is_run, block.skipped) for block in found] == [
        ("sh", True, None),
        ("sh", False, "needs a GPU"),
        ("console", True, None),
    ]
    assert found[0].where == "page.md:3"
    assert undecided(found) == []


def test_a_block_that_states_nothing_is_undecided(tmp_path: Path) -> None:
    assert undecided(blocks_of(page(tmp_path, "```sh\nls\n```\n"))) == ["page.md:1"]


def test_one_shell_types_them_all(tmp_path: Path) -> None:
    read(tmp_path, PAGE)


def test_a_variable_of_one_block_is_there_for_the_next(tmp_path: Path) -> None:
    read(tmp_path, "```sh run\nword=kept\n```\n\n```console run\n$ echo $word\nkept\n```\n")


def test_another_output_than_shown_does_not_pass(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"page.md:1: echo two"):
        read(tmp_path, "```console run\n$ echo two\none\n```\n")


def test_a_failing_command_does_not_pass_even_in_the_middle(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"page.md:1: exit code 1"):
        read(tmp_path, "```sh run\nfalse | cat\necho later\n```\n")


def test_what_is_waited_for_is_typed_until_it_holds(tmp_path: Path) -> None:
    read(tmp_path, "```sh run wait\necho x >>tries\n[ $(wc -l <tries) -ge 3 ]\n```\n")
    assert (tmp_path / "tries").read_text() == "x\n" * 3


def test_places_are_put_in_where_they_stand_alone(tmp_path: Path) -> None:
    text = "```console run\n$ echo /etc/muster/a /etc/muster2 8420 84201\n/here/a /etc/muster2 9 84201\n```\n"
    Reader(tmp_path, places={"/etc/muster": "/here", "8420": "9"}).read(blocks_of(page(tmp_path, text)))


@pytest.mark.parametrize(
    ("reported", "shown"), [("a\nb\n", ("a",)), ("a\n", ("a", "b")), ("ab\n", ("a",)), ("", ("a",))]
)
def test_more_or_less_than_is_shown_is_another_output(reported: str, shown: tuple[str, ...]) -> None:
    assert not shows(reported, shown)
