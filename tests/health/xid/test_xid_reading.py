"""What an error's own words ask for: the registers of an XID 74, the units of 144 to 150, an NVSwitch's line."""

from dataclasses import replace

import pytest

from health.detectors.registry import judge_signal
from health.xid.catalogue import XidClass
from health.xid.kernel_log import KernelLogReader
from health.xid.nvlink import NVLINK5_ROWS, REGISTER_BITS, read_nvlink5, read_registers
from health.xid.reading import ErrorReading, read_fault, read_xid
from health.xid.recovery import Action
from muster.domain.evidence.findings import EventKind, Severity, Source
from muster.domain.evidence.state_readings import DRIVER_BRANCH, branch_of, with_driver
from tests.health.case_factory import NOW_MS, POLICY, signal

NONE, RESET, RESTART = Action.NONE, Action.RESET_GPU, Action.RESTART_JOB
MONITOR, DIAGNOSE = Action.MONITOR, Action.FIELD_DIAGNOSIS

SHEET = {
    ("SAW_MVB", 1, 1): {0x2: RESET, 0x10: RESET, 0x1: NONE, 0x4: NONE, 0x8: NONE, 0x20: NONE},
    ("RLW_CTRL", 3, 3): {0x80000000: NONE},
    ("RLW_REMAP", 4, 4): {0x40: RESET, 0x80: RESET}
    | {1 << bit: RESTART for bit in range(6)}
    | {0x100: NONE, 0x200: NONE, 0x80000000: NONE},
    ("RLW_RSPCOL", 5, 5): {0x2: RESET, 0x1: NONE, 0x80000000: NONE},
    ("RLW_RXPIPE", 6, 6): {0x1: NONE, 0x2: NONE, 0x4: NONE, 0x8: NONE, 0x80000000: NONE},
    ("RLW_SRC_TRACK", 7, 7): {0x1: RESET, 0x10: RESET, 0x20: RESET, 0x4: RESTART, 0x8: RESTART, 0x2: NONE},
    ("RLW_TAGSTATE", 8, 8): {0x2: RESET, 0x20000: RESET, 0x100000: RESET, 0x1: NONE, 0x10000: NONE},
    ("TLW_CTRL", 9, 9): {0x4: RESET, 0x1: NONE, 0x2: NONE, 0x80000000: NONE},
    ("TLW_RX_PIPE0", 10, 10): {0x4: RESET, 0x1: NONE, 0x2: NONE, 0x80000000: NONE},
    ("TLW_RX_PIPE1", 10, 11): {0x4: RESET, 0x1: NONE, 0x2: NONE, 0x80000000: NONE},
    ("TLW_TX_PIPE0", 11, 12): {0x4: RESET, 0x1: NONE, 0x2: NONE, 0x80000000: NONE},
    ("TLW_TX_PIPE1", 11, 13): {0x4: RESET, 0x1: NONE, 0x2: NONE, 0x80000000: NONE},
    ("TREX", 12, 14): {0x1: NONE, 0x80000000: NONE},
    ("NVLPW_CTRL", 0, 15): {0x80000000: NONE},
    ("NETIR_INT", 0, 24): {0x0: RESET, 0x1: RESET, 0xFFFFFFFF: RESET},
    ("NETIR_BER_EVENT", 17, 19): {0x0: NONE, 0x1: NONE, 0x2: NONE, 0x3: NONE},
    ("NETIR_MFDE_EVENT", 18, 20): {0x1: RESET, 0x4: RESET, 0x5: RESET, 0x7: RESET, 0x3: NONE},
    ("MSE_WATCHDOG", 0, 0): {0x0: RESET, 0x8: RESET},
}
CODE_OF = {"SAW": 144, "RLW": 145, "TLW": 146, "TREX": 147, "NVLPW": 148, "NETIR": 149, "MSE": 150}
CASES = [(*unit, status, action) for unit, row in SHEET.items() for status, action in row.items()]
SUB_CODES = [0, 1, 2, 4, 10, 15, 16, 17, 18, 21, 22, 32, 33, 34, 35, 36, 37, 38, 40, 42, 43]


def code_of(unit: str) -> int:
    return CODE_OF[unit.partition("_")[0]]


def line(code: int, unit: str, interrupt: int, status: int) -> str:
    return f"{unit} Nonfatal XC0 i0 Link 03 (0x{interrupt:08x} 0x{status:08x} 0x00000000 0x00000000)"


@pytest.mark.parametrize(("unit", "old", "new", "status", "action"), CASES)
def test_each_row_of_the_sheet_in_both_layouts(unit: str, old: int, new: int, status: int, action: Action) -> None:
    code = code_of(unit)
    before = read_nvlink5(code, unit, (code - 143) | old << 5, status, driver_branch=570)
    since = read_nvlink5(code, unit, new, status, driver_branch=580)
    untold = read_nvlink5(code, unit, (code - 143) | old << 5, status)
    assert before is not None
    assert since is not None
    assert untold is not None
    assert before.action == since.action == untold.action == action


def test_the_cases_above_cover_every_row() -> None:
    told = {(unit, status) for unit, _, _, status, _ in CASES}
    ends = {"RLW_SRC_TRACK", "RLW_TAGSTATE"}
    missing = [
        row
        for row in NVLINK5_ROWS
        if row.status is not None
        and row.variant is not True
        and (row.unit, row.status) not in told
        and not (row.unit in ends and row.status == 0x80000000)
    ]
    assert missing == []
    assert {row.sub_code for row in NVLINK5_ROWS if row.unit == "NETIR_LINK_DOWN"} == set(SUB_CODES)


@pytest.mark.parametrize("status", [0x1, 0x2, 0x4])
@pytest.mark.parametrize(("branch", "variant", "base"), [(570, 1 << 10, 2 | 6 << 5), (580, 1 << 7, 6)])
def test_rxpipe_resets_with_its_variant_bit_alone(status: int, branch: int, variant: int, base: int) -> None:
    without = read_nvlink5(145, "RLW_RXPIPE", base, status, driver_branch=branch)
    with_bit = read_nvlink5(145, "RLW_RXPIPE", base | variant, status, driver_branch=branch)
    assert without is not None
    assert with_bit is not None
    assert (without.action, with_bit.action) == (NONE, RESET)


@pytest.mark.parametrize("sub_code", SUB_CODES)
def test_a_link_that_went_down_resets_but_for_two_sub_codes(sub_code: int) -> None:
    found = read_nvlink5(149, "NETIR_LINK_EVT", 6 | 14 << 5 | sub_code << 20, 0)
    assert found is not None
    assert (found.action, found.sub_code) == (NONE if sub_code in {38, 40} else RESET, sub_code)
    assert found.follow_up


def test_several_bits_ask_for_the_strongest_action() -> None:
    found = read_nvlink5(146, "TLW_CTRL", 9, 0x1 | 0x2 | 0x4, driver_branch=580)
    assert found is not None
    assert found.action is RESET


@pytest.mark.parametrize(("unit", "old", "status"), [("TREX", 12, 0x4), ("NVLPW", 0, 0x40), ("NETIR_BER_EVENT", 17, 9)])
def test_of_a_unit_that_is_passed_over_so_is_every_status(unit: str, old: int, status: int) -> None:
    code = code_of("NVLPW_CTRL" if unit == "NVLPW" else unit)
    found = read_nvlink5(code, unit, (code - 143) | old << 5, status)
    assert found is not None
    assert found.action is NONE


@pytest.mark.parametrize(("unit", "status"), [("SAW_EGR", 1), ("SAW_MVB", 0x40), ("SAW_MVB", 0)])
def test_what_no_row_knows_is_left_to_the_catalogue(unit: str, status: int) -> None:
    assert read_nvlink5(144, unit, 1, status) is None
    assert read_xid(144, line(144, unit, 1, status)).action is MONITOR


@pytest.mark.parametrize(
    ("register", "bits", "action"),
    [
        (1, [0, 23, 30], NONE),
        (1, [1, 20, 4, 5, 27, 29], MONITOR),
        (1, [8, 9, 12, 16, 17, 24, 28, 21, 22], DIAGNOSE),
        (3, [0, 1, 2, 6, 13, 16, 17, 18, 19], MONITOR),
        (4, [16, 17], MONITOR),
        (4, [18], RESET),
        (5, [18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29], MONITOR),
    ],
)
def test_each_bit_of_an_xid_74(register: int, bits: list[int], action: Action) -> None:
    for bit in bits:
        words = [0] * 7
        words[register - 1] = 1 << bit
        found = read_registers(words)
        assert found is not None
        assert (found.action, [(each.register, each.bit) for each in found.bits]) == (action, [(register, bit)])


def test_the_bits_above_are_all() -> None:
    assert len(REGISTER_BITS) == 3 + 6 + 9 + 9 + 3 + 12


@pytest.mark.parametrize("words", [[], [0] * 7, [1 << 31], [0, 1]])
def test_registers_that_state_nothing(words: list[int]) -> None:
    assert read_registers(words) is None


def test_a_bit_that_is_unknown_next_to_a_harmless_one_is_taken_as_the_code_is() -> None:
    found = read_registers([0x5, 0xDEAD])
    assert found is not None
    assert [(each.register, each.bit, each.action) for each in found.bits] == [(1, 0, NONE), (1, 2, RESET)]
    assert found.action is RESET


def read_line(text: str) -> ErrorReading:
    (fault,) = KernelLogReader().read(text)
    return read_fault(fault)


def test_an_xid_74_is_what_its_registers_state() -> None:
    words = "NVRM: Xid (PCI:0000:41:00): 74, pid=1, name=a, NVLink: fatal error detected on link 6({})"
    mechanical = read_line(words.format("0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0"))
    assert (mechanical.xid_class, mechanical.action, mechanical.decoded["link"]) == (XidClass.HARDWARE, DIAGNOSE, 6)
    unknown = read_line(words.format("0x0, 0x0, 0x0"))
    assert (unknown.action, unknown.source) == (RESET, "NVIDIA XID catalogue; class by Muster")


def test_an_extended_line_is_taken_apart() -> None:
    found = read_line(
        "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000)"
    )
    assert found.decoded == {
        "unit": "NETIR_LINK_EVT",
        "is_fatal": True,
        "is_contained": False,
        "is_injected": False,
        "link": 8,
        "sub_code": 4,
        "interrupt": "0x004505c6",
        "status": "0x00000000",
        "follow_up": "link signal",
    }
    assert found.action is RESET


@pytest.mark.parametrize(
    "cut", ["NETIR Fatal XC0 i0 Link -1 (0x000fe406", "NETIR Fatal", "NETIR Fatal XC0 i0 Link -1 (0x000fe4061 0x0)"]
)
def test_a_line_that_was_cut_is_still_its_code(cut: str) -> None:
    found = read_line(f"NVRM: Xid (PCI:0018:01:00): 149, {cut}")
    assert (found.xid_class, found.action, dict(found.decoded)) == (XidClass.WORKFLOW, MONITOR, {})


def test_a_fatal_error_of_an_nvswitch_concerns_the_fabric() -> None:
    fatal = read_line("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert (fatal.action, fatal.scope, fatal.decoded) == (
        Action.DRAIN_AND_RESET,
        "fabric",
        {"is_fatal": True, "link": 30},
    )
    mild = read_line("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress error")
    assert (mild.action, mild.decoded["is_fatal"]) == (MONITOR, False)
    for more in ("Data {0x1}", "Severity 1 Engine instance 30 Sub-engine instance 00"):
        told = read_line(f"nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, {more}")
        assert (told.action, told.decoded) == (MONITOR, {"is_detail": True})


@pytest.mark.parametrize(
    ("code", "text", "severity"),
    [
        (145, line(145, "RLW_REMAP", 4, 0x100), Severity.INFO),
        (145, line(145, "RLW_REMAP", 4, 0x80000000), Severity.WARNING),
        (145, line(145, "RLW_REMAP", 4, 0x40), Severity.CONDEMNING),
        (145, "", Severity.DEGRADED),
        (74, "NVLink: fatal error detected on link 6(0x10, 0x0, 0x0)", Severity.WARNING),
        (74, "NVLink: fatal error detected on link 6(0x100, 0x0, 0x0)", Severity.CONDEMNING),
    ],
)
def test_the_words_decide_how_much_an_nvlink_error_weighs(code: int, text: str, severity: Severity) -> None:
    (finding,) = judge_signal(signal(EventKind.XID, code=code, text=text, source=Source.KERNEL_LOG), POLICY)
    assert (finding.severity, finding.fault_key, finding.onset_ms) == (severity, f"xid:{code}", NOW_MS)


@pytest.mark.parametrize(
    ("branch", "severity"), [(None, Severity.WARNING), (570, Severity.WARNING), (580, Severity.CONDEMNING)]
)
def test_an_xid_is_judged_by_the_layout_of_its_hosts_driver(branch: int | None, severity: Severity) -> None:
    """0xc2 is unit 6 with no variant bit before R575, and has the variant bit (7) since."""
    event = signal(code=145, source=Source.KERNEL_LOG, text=line(145, "RLW_RXPIPE", 0xC2, 0x1))
    event = replace(event, values={} if branch is None else {DRIVER_BRANCH: float(branch)})
    (found,) = judge_signal(event, POLICY)
    assert found.severity is severity


@pytest.mark.parametrize(
    ("version", "branch"),
    [("580.95.05", 580), ("570.124.06", 570), ("", None), (None, None), ("unknown", None), ("580", None)],
)
def test_the_branch_of_a_driver_is_its_versions_first_number(version: str | None, branch: int | None) -> None:
    assert branch_of(version) == branch
    told = with_driver("xid", {"since_boot_s": 1.0}, version)
    assert told == ({"since_boot_s": 1.0} if branch is None else {"since_boot_s": 1.0, DRIVER_BRANCH: branch})
    assert with_driver("gpu_state", {}, version) == {}
