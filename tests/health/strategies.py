"""Evidence of any kind, for properties."""

from dataclasses import replace

from hypothesis import strategies as st

from muster.domain.evidence import Evidence, Severity, Trust
from muster.domain.ids import EvidenceId
from tests.health.case_factory import DAY, NOW_MS, evidence


@st.composite
def any_evidence(draw: st.DrawFn) -> Evidence:
    """Seen within ten days before or after ``NOW_MS``."""
    return evidence(
        "any",
        draw(st.sampled_from(Severity)),
        at_ms=NOW_MS + draw(st.integers(-10 * DAY, 10 * DAY)),
        trust=draw(st.sampled_from(Trust)),
        is_dismissed=draw(st.booleans()) and draw(st.booleans()),
        is_suspended=draw(st.booleans()) and draw(st.booleans()),
    )


def named(found: list[Evidence]) -> tuple[Evidence, ...]:
    return tuple(replace(each, id=EvidenceId(f"ev_{number}")) for number, each in enumerate(found))


many_evidences = st.lists(any_evidence(), max_size=6).map(named)
