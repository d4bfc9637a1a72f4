"""What is read of a GPU to judge it is bounded by what the rules use, however much was reported of it."""

from control.evidence.rows import INFO_OF_A_FAULT, evidence_about
from control.health.judge import SIGNALS
from muster.db.models import EvidenceRow
from tests.control.health.conftest import GPU, JUDGE, Court

REPORTED = INFO_OF_A_FAULT + 8


def remembered(court: Court) -> list[EvidenceRow]:
    with court.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
        return list(evidence_about(unit, [GPU], ()))


def test_of_a_program_that_crashes_on_and_on_the_newest_are_read_and_of_what_weighs_all(court: Court) -> None:
    for number in range(REPORTED):
        court.signal(f"mmu-{number}", kind="xid", code=31, source="kernel_log")
        court.signal(f"remap-{number}", kind="xid", code=63, source="kernel_log")
        court.clock.advance(200)
    court.judge()
    kept, read = [row.fault_key for row in court.rows(EvidenceRow)], [row.fault_key for row in remembered(court)]
    assert (kept.count("xid:31"), kept.count("xid:63")) == (REPORTED, REPORTED)
    assert (read.count("xid:31"), read.count("xid:63")) == (INFO_OF_A_FAULT, REPORTED)
    assert read.count("mmu_fault_repeats") == 1, "what a repetition meant is remembered too, and asks once"
    newest = max(row.last_seen_at for row in court.rows(EvidenceRow) if row.fault_key == "xid:31")
    assert newest in {row.last_seen_at for row in remembered(court) if row.fault_key == "xid:31"}
    court.clock.advance(31 * 86_400)
    assert [row.fault_key for row in remembered(court) if row.severity == 0] == [], "no rule looks back as far"
