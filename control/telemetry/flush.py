"""One group of reports in one transaction: permission, duplicates, currency; then a statement a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain

from sqlalchemy import Connection

from control.fleet.gpu_claims import GpuClaimedError
from control.telemetry.boots import BootBook, record_boot
from control.telemetry.judging import SampleJudge, Verdict
from control.telemetry.node_readings import Packed, known_in, pack_known
from control.telemetry.reports import AcceptedReport, Duplicate, FreshReport, IncomingReport, Outcome
from control.telemetry.rows import (
    Matrix,
    covers_all,
    gap_rows,
    node_row,
    pack_blocks,
    packed_as_reported,
    reported_by,
    reported_in,
    signal_rows,
)
from muster.db.queries import telemetry as statements
from muster.db.queries.telemetry import LockedNode
from muster.db.queries.telemetry_gaps import add_gaps
from muster.domain.errors import MusterError, NotFoundError, UnauthenticatedError


@dataclass(slots=True)
class Group:
    """Results of one flush. ``outcomes`` has a place for each report, in the order of their arrival."""

    outcomes: list[Outcome | None]
    fresh: list[FreshReport] = field(default_factory=list)
    books: dict[str, BootBook] = field(default_factory=dict)
    current: dict[str, list[int]] = field(default_factory=dict)
    """Reports that move latest state by node, as their places in ``fresh``; the last is the node's newest one."""
    num_signals: int = 0
    num_unknown_kinds: int = 0
    verdict: Verdict = field(default_factory=Verdict)


def flush(connection: Connection, incoming: Sequence[IncomingReport], now: datetime, judge: SampleJudge) -> Group:
    """Write a group, with the findings in its samples, within the open transaction."""
    group = Group([None] * len(incoming))
    wanted = _permitted(connection, incoming, group, now)
    nodes = _lock(connection, wanted)
    wanted = _of_known_nodes(wanted, nodes, group)
    _sort_out(connection, wanted, nodes, group)
    _order(group, nodes)
    current = [fresh for fresh in group.fresh if fresh.boot_order is not None]
    group.verdict = judge.judge(connection, current, nodes, group.books, now)
    _write(connection, group, nodes, now, judge)
    return group


def accept(group: Group, judge: SampleJudge) -> list[Outcome]:
    """Return the outcomes, once the transaction is committed."""
    judge.keep(group.verdict)
    for fresh in group.fresh:
        incoming = fresh.incoming
        group.outcomes[fresh.position] = AcceptedReport(
            incoming.node_id,
            incoming.report,
            incoming.received_ms,
            is_current=fresh.boot_order is not None,
            is_skewed=incoming.is_skewed,
            unknown_gpus=fresh.unknown_gpus,
        )
    return [Duplicate() if outcome is None else outcome for outcome in group.outcomes]


def _permitted(
    connection: Connection, incoming: Sequence[IncomingReport], group: Group, now: datetime
) -> list[tuple[int, IncomingReport]]:
    """Refuse reports whose key was revoked a moment ago, however long its principal was cached. Return the others."""
    dead = statements.dead_keys(connection, {one.key_id for one in incoming if one.key_id is not None}, now)
    wanted = []
    for position, one in enumerate(incoming):
        if one.key_id in dead:
            group.outcomes[position] = UnauthenticatedError()
        else:
            wanted.append((position, one))
    return wanted


def _lock(connection: Connection, wanted: Sequence[tuple[int, IncomingReport]]) -> dict[str, LockedNode]:
    node_ids = sorted({one.node_id for _, one in wanted})
    nodes = statements.lock_nodes(connection, node_ids)
    if len(nodes) < len(node_ids):
        statements.add_nodes(connection, [node_id for node_id in node_ids if node_id not in nodes])
        nodes = statements.lock_nodes(connection, node_ids)
    return nodes


def _of_known_nodes(
    wanted: Sequence[tuple[int, IncomingReport]], nodes: dict[str, LockedNode], group: Group
) -> list[tuple[int, IncomingReport]]:
    for position, one in wanted:
        if one.node_id not in nodes:
            group.outcomes[position] = NotFoundError("this node is not enrolled")
    return [(position, one) for position, one in wanted if one.node_id in nodes]


def _sort_out(
    connection: Connection, wanted: Sequence[tuple[int, IncomingReport]], nodes: dict[str, LockedNode], group: Group
) -> None:
    """Refuse reports about another node's GPU (I16), recognise duplicates, and keep the others as fresh."""
    strangers = {(position, uuid) for position, one in wanted for uuid in _strangers(one, nodes[one.node_id])}
    owners = statements.owners_of(connection, {uuid for _, uuid in strangers}) if strangers else {}
    foreign: dict[int, list[str]] = {}
    for position, uuid in strangers:
        if uuid in owners:
            foreign.setdefault(position, []).append(uuid)
    seen_before = statements.already_seen(connection, [one.identity for _, one in wanted])
    identities = set()
    for index, (position, one) in enumerate(wanted):
        if position in foreign:
            group.outcomes[position] = _foreign_gpus(sorted(foreign[position]))
        elif index not in seen_before and one.identity not in identities:
            identities.add(one.identity)
            group.fresh.append(_fresh(position, one, nodes[one.node_id]))


def _strangers(one: IncomingReport, node: LockedNode) -> set[str]:
    spoken_of = [gpu.uuid for gpu in one.report.gpus]
    if one.report.events:
        spoken_of += [event.gpu_uuid for event in one.report.events if event.gpu_uuid is not None]
    return set() if node.gpu_uuids.issuperset(spoken_of) else set(spoken_of) - node.gpu_uuids


def _foreign_gpus(uuids: list[str]) -> MusterError:
    return GpuClaimedError(
        f"these GPUs are enrolled on another node: {', '.join(uuids)}",
        suggestion="Report the node's own GPUs alone; a board that has moved is enrolled again first.",
        gpu_uuids=uuids,
        reason="foreign_gpu",
    )


def _fresh(position: int, one: IncomingReport, node: LockedNode) -> FreshReport:
    gpus = one.report.gpus
    uuids = [gpu.uuid for gpu in gpus]
    if node.gpu_uuids.issuperset(uuids):
        return FreshReport(position, one, gpus, uuids)
    own = tuple(gpu for gpu in gpus if gpu.uuid in node.gpu_uuids)
    unknown = tuple(uuid for uuid in uuids if uuid not in node.gpu_uuids)
    return FreshReport(position, one, own, [gpu.uuid for gpu in own], unknown)


def _order(group: Group, nodes: dict[str, LockedNode]) -> None:
    """Order fresh reports by their numbers, so that a pair which met in one group counts as it was sent."""
    group.fresh.sort(key=lambda fresh: fresh.incoming.report.seq)
    for place, fresh in enumerate(group.fresh):
        report, node_id = fresh.incoming.report, fresh.incoming.node_id
        if report.is_history:
            continue
        node = nodes[node_id]
        before = group.books.get(node_id) or BootBook(
            node.boot_id, node.boot_order, node.seq, node.newest_ms, node.past_boot_ids
        )
        book = record_boot(
            before,
            report.boot_id,
            report.seq,
            fresh.incoming.placed_ms,
            known_boot=node.heartbeat_boot_id,
            past_boots=node.past_heartbeat_boots,
        )
        if book is not None:
            fresh.boot_order = book.order
            group.books[node_id] = book
            group.current.setdefault(node_id, []).append(place)


def _write(
    connection: Connection, group: Group, nodes: dict[str, LockedNode], now: datetime, judge: SampleJudge
) -> None:
    if not group.fresh:
        return
    blocks, matrices = pack_blocks(group.fresh)
    statements.add_blocks(connection, blocks, now)
    if group.current:
        gpus = _gpus_after(connection, group, nodes, matrices, now)
        rows = [
            node_row(group.fresh[places[-1]], group.books[node_id], group.verdict, gpus[node_id])
            for node_id, places in sorted(group.current.items())
        ]
        statements.move_nodes(connection, rows, now, judge.agent_silence)
    told = (signal_rows(fresh.incoming, now, judge.is_alarming) for fresh in group.fresh)
    signals = [*group.verdict.rows, *chain.from_iterable(told)]
    if signals:
        group.num_signals = len(signals)
        group.num_unknown_kinds = sum(row.get("judge_fault") is not None for row in signals)
        statements.add_signals(connection, sorted(signals, key=lambda row: (row["node_id"], row["signal_id"])))
    gaps = [row for fresh in group.fresh for row in gap_rows(fresh.incoming, now)]
    if gaps:
        add_gaps(connection, gaps)


def _gpus_after(
    connection: Connection, group: Group, nodes: dict[str, LockedNode], matrices: Sequence[Matrix], now: datetime
) -> dict[str, Packed]:
    """Return each node's newest readings. A report with all of its GPUs needs no earlier readings."""
    whole = {
        node_id
        for node_id, places in group.current.items()
        if covers_all(group.fresh[places[-1]], nodes[node_id].gpu_uuids)
    }
    parts = group.current.keys() - whole
    before = statements.readings_of(connection, sorted(parts)) if parts else {}
    found = {}
    for node_id, places in group.current.items():
        newest = group.fresh[places[-1]]
        if node_id in whole:
            found[node_id] = packed_as_reported(newest, matrices[places[-1]])
            continue
        known = known_in(before[node_id])
        for place in places:
            known |= reported_by(group.fresh[place], now)
        found[node_id] = pack_known(known, nodes[node_id].gpu_uuids, reported_in(newest, now))
    return found
