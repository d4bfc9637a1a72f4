"""docs/reference/detectors.md is what the registry says, and leaves no rule out."""

from health.detectors.registry import DETECTORS
from tools.detector_reference import PAGE, main, written


def test_the_page_is_what_the_registry_states() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run `make detector-reference`"
    assert main(["--check"]) == 0


def test_every_rule_has_one_row() -> None:
    rows = [line.split("|")[1].strip(" `") for line in written().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(DETECTORS)
