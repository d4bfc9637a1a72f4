"""Storage of the entries and facts of an hour: entries by COPY, facts by PostgreSQL from the entries."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from ledger.accounts import Account
from ledger.entries import Entry, Heading
from muster.db.sessions import note_change

_COPY: Final = """
COPY ledger_entries (hour, revision, node_id, account, cause, num_ms, gpus, gpu_ms, evidence, model, cohort_key, rack,
    site, attempt_id, job_id, tenant_id, tier, job_class) FROM STDIN
"""
_READ: Final = text("""
SELECT node_id, account, coalesce(attempt_id, ''), cause, evidence, model, cohort_key, rack, site, coalesce(job_id, ''),
    coalesce(tenant_id, ''), coalesce(tier, ''), job_class, gpus, gpu_ms
FROM ledger_entries WHERE hour = :hour AND (CAST(:node_id AS text) IS NULL OR node_id = :node_id)
""")
_HAS_ANY: Final = text("SELECT EXISTS (SELECT FROM ledger_entries WHERE hour = :hour)")
_REMOVE: Final = text("DELETE FROM ledger_entries WHERE hour = :hour")
_KEYS: Final = "account, cause, tenant_id, tier, job_class, model, cohort_key, rack, site"
_FORGET_HOUR: Final = text("DELETE FROM ledger_facts WHERE begins_at = :hour AND span_s = 3600")
_FORGET_DAY: Final = text(
    "DELETE FROM ledger_facts WHERE begins_at = date_trunc('day', CAST(:hour AS timestamptz), 'UTC') AND span_s = 86400"
)
_HOUR: Final = text(f"""
INSERT INTO ledger_facts (begins_at, span_s, {_KEYS}, num_ms)
SELECT hour, 3600, account, cause, coalesce(tenant_id, ''), coalesce(tier, ''), coalesce(job_class, ''), model,
    cohort_key, coalesce(rack, ''), coalesce(site, ''), sum(num_ms)
FROM ledger_entries WHERE hour = :hour
GROUP BY 1, 3, 4, 5, 6, 7, 8, 9, 10, 11 HAVING sum(num_ms) <> 0
""")  # noqa: S608  # words of ours
_DAY: Final = text(f"""
INSERT INTO ledger_facts (begins_at, span_s, {_KEYS}, num_ms)
SELECT date_trunc('day', CAST(:hour AS timestamptz), 'UTC'), 86400, {_KEYS}, sum(num_ms)
FROM ledger_facts
WHERE span_s = 3600 AND begins_at >= date_trunc('day', CAST(:hour AS timestamptz), 'UTC')
    AND begins_at < date_trunc('day', CAST(:hour AS timestamptz), 'UTC') + interval '24 hours'
GROUP BY {_KEYS} HAVING sum(num_ms) <> 0
""")  # noqa: S608  # words of ours
_TURN: Final = text("SELECT pg_advisory_xact_lock(hashtext('muster ledger day'))")
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
_NULL: Final = r"\N"


def remove_entries(session: Session, hour: datetime) -> None:
    session.execute(_REMOVE, {"hour": hour})


def add_entries(session: Session, hour: datetime, revision: int, entries: Iterable[Entry]) -> None:
    """Add entries in the order in which they come, as one statement."""
    note_change(session)
    driver = session.connection().connection.driver_connection
    if driver is None:
        raise AssertionError("the session has lost its connection")
    begin = f"{hour.isoformat()}\t{revision}\t"
    with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
        for block in _blocks(entries):
            copy.write("".join(begin + _line(entry) for entry in block))


def stored_entries(session: Session, hour: datetime, *, node_id: str | None = None) -> Iterator[Entry]:
    """Yield all entries of an hour, or of one host in it, corrections included."""
    for row in session.execute(_READ, {"hour": hour, "node_id": node_id}):
        node_id, account, attempt_id, cause, evidence, *rest, gpus, gpu_ms = row
        heading = Heading(node_id, Account(account), attempt_id, cause, tuple(evidence), *rest)
        yield Entry(heading, tuple(gpus), tuple(gpu_ms))


def has_entries(session: Session, hour: datetime) -> bool:
    """Return whether the hour has any entry: retention drops all entries of an hour together."""
    return bool(session.scalar(_HAS_ANY, {"hour": hour}))


def store_facts(session: Session, hour: datetime) -> None:
    """Sum up the hour's entries, and its day's hours: one worker at a time, as each replaces the day's sums."""
    for statement in (_FORGET_HOUR, _HOUR):
        session.execute(statement, {"hour": hour})
    session.execute(_TURN)
    for statement in (_FORGET_DAY, _DAY):
        session.execute(statement, {"hour": hour})


def _blocks(entries: Iterable[Entry], size: int = 500) -> Iterator[Sequence[Entry]]:
    block: list[Entry] = []
    for entry in entries:
        block.append(entry)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block


def _line(entry: Entry) -> str:
    """Return the entry in the text format of COPY."""
    head = entry.heading
    values = (
        *(_text(head.node_id), head.account.value, _text(head.cause), str(entry.num_ms), _array(entry.gpus)),
        "{" + ",".join(map(str, entry.gpu_ms)) + "}",
        *(_array(head.evidence), _text(head.model), _text(head.cohort_key), _or_null(head.rack), _or_null(head.site)),
        *map(_or_null, (head.attempt_id, head.job_id, head.tenant_id, head.tier, head.job_class)),
    )
    return "\t".join(values) + "\n"


def _text(value: str) -> str:
    return value.translate(_ESCAPES)


def _or_null(value: str | None) -> str:
    return _text(value) if value else _NULL


def _array(values: Sequence[str]) -> str:
    quoted = ('"' + value.replace("\\", r"\\").replace('"', r"\"") + '"' for value in values)
    return _text("{" + ",".join(quoted) + "}")
