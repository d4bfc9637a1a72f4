"""Evidence of any kind, for properties."""

from dataclasses import replace

from hypothesis import strategies as st

from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.ids import EvidenceId
from tests.health.case_factory import DAY, MINUTE, NOW_MS, evidence


@st.composite
def any_evidence(draw: st.DrawFn) -> Evidence:
    """Seen within ten days before or after ``NOW_MS``, or within minutes of it, so that some are of one burst."""
    code = draw(st.sampled_from((63, 63, 79)))
    return evidence(
        "any",
        draw(st.sampled_from(Severity)),
        at_ms=NOW_MS + draw(st.one_of(st.integers(-10 * DAY, 10 * DAY), st.integers(-10, 10).map(MINUTE.__mul__))),
        fault=f"xid:{code}",
        values={"code": float(code)},
        trust=draw(st.sampled_from(Trust)),
        is_dismissed=draw(st.booleans()) and draw(st.booleans()),
        is_suspended=draw(st.booleans()) and draw(st.booleans()),
    )


def named(found: list[Evidence]) -> tuple[Evidence, ...]:
    return tuple(replace(each, id=EvidenceId(f"ev_{number}")) for number, each in enumerate(found))


many_evidences = st.lists(any_evidence(), max_size=6).map(named)
