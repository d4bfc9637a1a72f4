"""``muster system``."""

from collections.abc import Iterator
from typing import Final

from muster.cli.framework.output import Page, Table, age, reading
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document

QUEUE_COLUMNS: Final = (
    Column("WHAT", lambda row: row["what"]),
    Column("WAITING", lambda row: row["num"]),
    Column("OLDEST", lambda row: "" if row["oldest_age_s"] is None else f"{row['oldest_age_s']:.0f} s"),
    Column("ALSO", lambda row: row["also"], is_text=True),
)


@reading
def system() -> Page:
    """Show what is pending in the control plane, and for how long."""
    with open_client(as_operator=True) as client:
        found = client.system()
    return Page(found, list(_parts(found)))


def _parts(found: Document) -> Iterator[str | Table]:
    yield f"version {found['version']}, PostgreSQL {found['database_version']}"
    schema = found["schema"]
    if not schema["is_current"]:
        yield f"  the database is at {schema['revision']}, this version needs {schema['needed']}: `muster migrate`"
    yield from _beats(found["heartbeats"])
    ingest = found["ingest"]
    yield f"  telemetry of the last minute: {ingest['reports_last_minute']} reports, {ingest['gpus_last_minute']} GPUs"
    if not found["scheduler"]["is_active"]:
        yield "  NO SCHEDULER RUNS: nothing new is placed; start `muster scheduler`"
    if found["accepts_heartbeats_since"] is not None:
        yield f"  heartbeats have been accepted for {age(found['accepts_heartbeats_since'])}"
    for loop in found.get("loops", ()):  # a server of the release before has none
        if loop["is_stalled"]:
            since = f"has not advanced for {loop['age_s']:.0f} s"
            yield f"  THE LOOP {loop['name']} {since}: start `{loop['started_by']}` again"
    yield Table(QUEUE_COLUMNS, list(_waiting(found)), indent="")
    open_scopes = [scope["scope"] for each in found["breakers"] for scope in each["scopes"] if scope["is_open"]]
    yield f"breaker: {'OPEN in ' + ', '.join(open_scopes) if open_scopes else 'closed'}"


def _beats(beats: Document) -> Iterator[str]:
    yield f"  nodes: {beats['num_live']} LIVE, {beats['num_silent']} SILENT, {beats['num_lost']} LOST"
    if beats["max_age_s"] is not None:
        ages = (beats["median_age_s"], beats["p99_age_s"], beats["max_age_s"])
        yield "  heartbeats: {:.1f} s ago in the median, {:.1f} s at p99, {:.1f} s at most".format(*ages)


def _waiting(found: Document) -> Iterator[Document]:
    dead, aside = found["outbox"]["num_dead"], found["judge"]["num_set_aside"]
    yield {"what": "jobs for the scheduler", **found["scheduler"]["queued"], "also": ""}
    yield {"what": "messages to send", **found["outbox"], "also": f"{dead} given up" if dead else ""}
    yield {"what": "events for a position", **found["sequencer"], "also": f"at {found['sequencer']['position']}"}
    yield {"what": "audit entries to seal", **found["sealer"], "also": f"at {found['sealer']['position']}"}
    yield {"what": "signals to judge", **found["judge"], "also": f"{aside} set aside" if aside else ""}
