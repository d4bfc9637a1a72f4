"""docs/xid.md is what the data says, and says of every difference why ours is as it is."""

from health.xid.catalogue import CATALOGUE, KNOWLEDGE
from tools.xid_reference import PAGE, differs, main, reason_of, verdict_of, written

OTHERS = KNOWLEDGE["others"]


def told(code: int) -> dict[str, str]:
    return {name: verdict_of(tool, code) for name, tool in OTHERS.items()}


def test_the_page_is_what_the_data_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run `make xid-reference`"
    assert main(["--check"]) == 0


def test_every_code_in_use_has_a_row() -> None:
    rows = {line.split("|")[1].strip() for line in written().partition("## Where")[0].splitlines() if line[:3] == "| 1"}
    assert rows >= {str(code) for code, entry in CATALOGUE.items() if entry.is_in_use and str(code)[0] == "1"}
    assert "58" not in rows


def test_known_differences_are_told_with_a_reason() -> None:
    assert told(109) == {
        "gpud": "warns",
        "DCGM": "nothing",
        "AWS": "out",
        "Azure": "nothing",
        "device plugin": "passes",
    }
    assert told(94)["gpud"] == "out"
    for code in (38, 44, 62, 63, 68, 94, 109, 136, 142, 143, 168):
        assert differs(CATALOGUE[code], told(code)), code
        assert reason_of(CATALOGUE[code])
    assert not differs(CATALOGUE[13], told(13))
    assert not differs(CATALOGUE[43], told(43))
