"""docs/reference/figures.md is what the definitions say, and leaves no figure out."""

from ledger.figures.indicators import INDICATORS
from tools.figure_reference import PAGE, main, written


def test_the_page_is_what_the_definitions_state() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run `make figure-reference`"
    assert main(["--check"]) == 0


def test_every_figure_has_one_heading() -> None:
    headings = [line.removeprefix("### ") for line in written().splitlines() if line.startswith("### ")]
    assert headings == list(INDICATORS)
