"""The pages for operators, tenants and programs, typed in their order on local stacks; and every command named."""

import re
import shutil
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of, undecided
from tests.docs.local_stack import A_FAULT, PROVED, local_stack, words_of_up
from tests.docs.named_commands import Named, commands_in, fault_of
from tests.docs.pages import DOCS, FOLDERS, GROUPS, PAGES, RUNBOOKS, STARTS_THE_STACK, TYPED, indexed, name_of, typed_of
from tests.stack.harness import own_folder
from tests.warm_python import WarmPython


@pytest.mark.parametrize("page", TYPED, ids=name_of)
def test_every_block_is_typed_or_states_why_not(page: Path) -> None:
    assert undecided(blocks_of(page)) == []


def test_each_folder_is_typed_in_one_group() -> None:
    assert sorted(folder for group in GROUPS for folder in group) == sorted(FOLDERS)


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if (DOCS / folder).is_dir()])
def test_the_index_names_each_page_once_and_its_quick_start(folder: str) -> None:
    pages = [page for page in (DOCS / folder).glob("*.md") if page.name != "README.md"]
    assert sorted(indexed(DOCS / folder)) == sorted([*pages, DOCS / f"quickstart-{folder}.md"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_that_is_named_exists_with_those_words(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("policy.yaml", "rates.yaml", "FILE"):
        Path(name).touch()
    assert [fault for each in commands_in(page) if (fault := fault_of(each)) is not None] == []


def test_each_runbook_names_commands() -> None:
    assert [page.name for page in RUNBOOKS if not commands_in(page)] == []
    assert sum(len(commands_in(page)) for page in PAGES) > 200


def test_a_command_that_does_not_exist_is_found() -> None:
    assert fault_of(Named("page.md", ("muster", "gpu", "explode", "GPU-1"))) is not None
    assert fault_of(Named("page.md", ("muster", "gpu", "retire", "GPU-1"))) is not None, "the reason is missing"
    assert fault_of(Named("page.md", ("muster", "gpu", "retire", "GPU-1", "--reason", "old"))) is None


def test_commands_are_found_in_text_and_blocks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`muster gpu list --json`\n\n```sh\nid=$(muster node list | wc -l)\nmuster doctor >x\n```\n")
    assert [each.words for each in commands_in(page)] == [
        ("muster", "gpu", "list", "--json"),
        ("muster", "node", "list"),
        ("muster", "doctor"),
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.skipif(
    None in {shutil.which("jq"), shutil.which("curl")}, reason="CURL OR JQ IS NOT HERE: no page is typed"
)
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("group", GROUPS, ids=" and ".join)
def test_the_pages_hold_as_they_are_typed(
    group: tuple[str, ...],
    server_folder: Path,
    warm_muster: WarmPython,
    warm_stack: WarmPython,
    warm_python: WarmPython,
) -> None:
    words = words_of_up(STARTS_THE_STACK.read_text(encoding="utf-8"))
    folder_of_stack = own_folder(server_folder, "pages")
    with local_stack(folder_of_stack, words, warm_muster, warm_stack, warm_python) as reader:
        reader.type(PROVED)
        for folder in group:
            reader.read(A_FAULT if folder == "api" else ())
            for page in typed_of(folder):
                reader.read(blocks_of(page))
