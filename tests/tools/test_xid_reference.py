"""docs/reference/xid.md is what the data says, and says of every difference why ours is as it is."""

import pytest

from health.xid.catalogue import CATALOGUE, KNOWLEDGE
from tools.xid_reference import PAGE, differs, main, reason_of, verdict_of, written

OTHERS = KNOWLEDGE["others"]


def stated(code: int) -> dict[str, str]:
    return {name: verdict_of(tool, code) for name, tool in OTHERS.items()}


def test_the_page_is_what_the_data_states() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run `make xid-reference`"
    assert main(["--check"]) == 0


def test_every_code_in_use_has_a_row() -> None:
    rows = {line.split("|")[1].strip() for line in written().partition("## Where")[0].splitlines() if line[:3] == "| 1"}
    assert rows >= {str(code) for code, entry in CATALOGUE.items() if entry.is_in_use and str(code)[0] == "1"}
    assert "58" not in rows


def test_known_differences_are_reported_with_a_reason() -> None:
    assert stated(109) == {
        "gpud": "warns",
        "DCGM": "nothing",
        "AWS": "out",
        "Azure": "nothing",
        "device plugin": "passes",
    }
    assert stated(94)["gpud"] == "out"
    for code in (38, 44, 62, 63, 68, 94, 109, 136, 142, 143, 168):
        assert differs(CATALOGUE[code], stated(code)), code
        assert reason_of(CATALOGUE[code])
    assert not differs(CATALOGUE[45], stated(45)), "none of them takes it out, nor do we"


@pytest.mark.parametrize(
    ("code", "gpud", "dcgm", "aws", "azure", "device_plugin"),
    [
        (38, "out (reboot, then inspection)", "warns (PCIe)", "warns", "nothing", "out (unhealthy)"),
        (44, "out (reboot, then inspection)", "nothing", "warns", "nothing", "out (unhealthy)"),
        (62, "out (reboot, then inspection)", "warns (thermal)", "out (fatal)", "out (fail)", "out (unhealthy)"),
        (63, "out (reboot, then inspection)", "warns", "out (fatal)", "out (fail)", "out (unhealthy)"),
        (68, "out (reboot, then inspection)", "nothing", "warns", "out (fail)", "passes (ignored)"),
        (94, "out (reboot, never more)", "warns", "warns", "nothing", "out (unhealthy)"),
        (109, "warns (no action)", "nothing", "out (fatal)", "nothing", "passes (ignored)"),
        (136, "warns (no action)", "nothing", "out (fatal)", "nothing", "out (unhealthy)"),
        (142, "warns (no action)", "nothing", "out (fatal)", "nothing", "out (unhealthy)"),
        (168, "warns (no action)", "nothing", "warns", "nothing", "out (unhealthy)"),
        (143, "out (inspection)", "nothing", "out (fatal)", "nothing", "out (unhealthy)"),
        (31, "passes (check the program)", "warns", "warns", "nothing", "passes (ignored)"),
        (13, "passes (check the program)", "nothing", "warns", "nothing", "passes (ignored)"),
    ],
)
def test_each_row_of_the_disagreement_is_on_the_page(
    code: int, gpud: str, dcgm: str, aws: str, azure: str, device_plugin: str
) -> None:
    differences = written().partition("## Where")[2]
    (row,) = (line for line in differences.splitlines() if line.startswith(f"| {code} |"))
    assert row.strip("| ").split(" | ")[3:-1] == [gpud, dcgm, aws, azure, device_plugin]


def test_every_word_of_another_tool_is_about_a_code_that_it_judges() -> None:
    for name, tool in OTHERS.items():
        judged = {code for verdict in ("out", "warns", "passes") for code in tool.get(verdict, ())}
        worded = [code for codes in tool.get("own", {}).values() for code in codes]
        assert len(worded) == len(set(worded)), name
        assert set(worded) <= judged, name
    assert set(OTHERS["gpud"]["out"]) <= {code for codes in OTHERS["gpud"]["own"].values() for code in codes}
