"""All facts of a window of the fleet, in one snapshot: a statement for each kind, however large the fleet is."""

from sqlalchemy.orm import Session

from control.ledger.attempt_facts import attempts_of
from control.ledger.gpu_facts import gpus_of, nodes_of
from control.ledger.reading import Window
from control.ledger.wait_facts import waits_of
from ledger.facts import Facts


def facts_of(session: Session, start_ms: int, end_ms: int) -> Facts:
    """Return the facts of the time from ``start_ms`` to before ``end_ms``, as far as they are known."""
    window = Window(session, start_ms, end_ms)
    found = waits_of(window, session)
    nodes = nodes_of(window, found.groups)
    return Facts(start_ms, end_ms, gpus_of(window), nodes, attempts_of(window), found.waits)
