"""Keepers of ``muster worker control``, for events, audit, outbox and time. Any number of processes may run.

Each keeper takes its rows under locks, so several are safe. It runs at once on a notification of the database, and by
itself after a pause.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from control.attempts.reconcile import reconcile
from control.content.collection import keep_once as keep_content_once
from control.content.reports import check_reports_once
from control.core.relay import has_due, relay_once
from control.core.sealer import has_unsealed, seal_once
from control.core.sequencer import has_unsequenced, sequence_once
from control.core.unit_of_work import WAKEUP_TOPIC, Channel, UnitOfWorkFactory
from control.evidence.unknown_kinds import sort_unknown_kinds_once
from control.fleet.attribute_refresh import BATCH as ATTRIBUTES_BATCH
from control.fleet.attribute_refresh import refresh_attributes_once
from control.fleet.driver_refresh import refresh_drivers_once
from control.fleet.expiry import expire
from control.fleet.failure_rates import count_once
from control.health.agent_silence import state_silent_agents_once
from control.health.burn_ins.hosts import expire_once
from control.health.burn_ins.orders import order_intake_once
from control.health.burn_ins.suspected import order_suspected_once
from control.health.burn_ins.verdicts import judge_burn_ins_once
from control.health.evacuation import evacuate_once
from control.health.judge import BATCH, judge_once
from control.health.peers import PeerRounds
from control.health.pending import has_burn_ins, judges_work
from control.health.rollups import take_once as take_rollups_once
from control.health.rule_cordons import hold_nodes_once
from control.health.rule_repairs import start_repairs_once
from control.health.suspicion import hold_suspects_once
from control.hosts.maintenance_evacuation import evacuate_for_maintenance_once
from control.jobs.energy_records import keep_energy_once
from control.jobs.lost_bundles import keep_jobs_once
from control.ledger.budget_stops import keep_budgets_once
from control.ledger.closing import keep_ledger_once
from control.ledger.figure_hours import count_once as count_figures_once
from control.ledger.gpu_figures import count_gpus_once
from control.ledger.objectives import keep_objectives_once
from control.notifications.delivery import Delivery
from control.notifications.fan_out import fan_out_once, has_news
from control.notifications.http_receiver import HttpSender
from control.notifications.mail_receiver import MailServer
from control.notifications.sending import NUM_THREADS, Sender
from control.secrets.settings_keys import keys_of_settings
from control.system import retention
from control.system.attention import keep_attention_once
from control.system.liveness import Reporter
from control.telemetry import retention as telemetry
from control.training.storage_faults import settle_once
from control.watch.idle import IdleRounds
from control.watch.stalls import judge_stalls_once
from control.watch.stragglers import StragglerRounds
from muster.db.engine import SessionLimits, make_engine
from muster.domain.principals import system_principal
from muster.processes import Loop, run_loops, stop_on_signals
from muster.settings import Settings
from muster.store.objects import ObjectStore
from workers.wakeup.sender import WakeupSender

PAUSE_S: Final = 0.5
BUSY_S: Final = 0.1
"""Pause while notifications are sent: a route whose claim has ended may have more."""
RECONCILE_S: Final = 1.0
JUDGE_S: Final = 0.25
BURN_IN_S: Final = 0.5
SWEEP_S: Final = 60.0
TELEMETRY_S: Final = 15.0
FAILURES_S: Final = 60.0
ROLLUPS_S: Final = 10.0
ENERGY_S: Final = 10.0
PEERS_S: Final = 60.0
KINDS_S: Final = 60.0
REPAIRS_S: Final = 5.0
THRIFTY_FACTOR: Final = 49
"""Least pause of a thrifty loop by the time that its work took: two per cent of a core at most."""
THRIFTY_S: Final = 30.0
"""Longest pause of a thrifty loop."""
SILENCE_S: Final = 5.0
STALLS_S: Final = 1.0
IDLE_S: Final = 60.0
STRAGGLERS_S: Final = 5.0
CONTENT_S: Final = 30.0
LOST_S: Final = 1.0
LEDGER_S: Final = 15.0
OBJECTIVES_S: Final = 10.0
BUDGETS_S: Final = 15.0
FIGURES_S: Final = 5.0
FIGURES_STALLED_S: Final = 900.0
"""Counting an hour of a large fleet takes minutes, at the pace of a thrifty loop."""
FIGURES_STATEMENT_MS: Final = 120_000
_log = structlog.get_logger(__name__)


def run(settings: Settings) -> None:
    """Run the keepers until SIGTERM or SIGINT."""
    settings.require("database_url", "broker_url")
    engine = make_engine(str(settings.database_url), application_name="muster-control")
    units = UnitOfWorkFactory(engine)
    limits = SessionLimits(statement_ms=FIGURES_STATEMENT_MS)
    patient = make_engine(
        str(settings.database_url), application_name="muster-figures", pool_size=1, max_overflow=1, limits=limits
    )
    # Of its own: threads that wait for receivers take no connection from the other loops.
    sending = make_engine(
        str(settings.database_url), application_name="muster-notify", pool_size=4, max_overflow=NUM_THREADS
    )
    stop = stop_on_signals()
    store = ObjectStore.from_settings(settings)
    loops = keepers(
        units,
        str(settings.broker_url),
        store,
        patient=UnitOfWorkFactory(patient),
        make_sender=lambda: sender_of(UnitOfWorkFactory(sending), settings),
    )
    _log.info("control_worker_started", keeps=[loop.name for loop in loops])
    run_loops(loops, stop, report=Reporter(units, "worker-control").report)
    for each in (engine, patient, sending):
        each.dispose()


def keepers(
    units: UnitOfWorkFactory,
    broker_url: str,
    store: ObjectStore | None = None,
    *,
    patient: UnitOfWorkFactory | None = None,
    make_sender: Callable[[], Sender] | None = None,
) -> list[Loop]:
    """Return the loops. ``patient``: units whose statements may take long, for counting; None: ``units``.

    ``make_sender``: of notifications; None: without keys and mail.
    """
    principal = system_principal("reconciler")
    return [
        Loop("sequencer", _woken(units, "muster_events", has_unsequenced, lambda: sequence_once(units) > 0)),
        Loop("sealer", _woken(units, "muster_events", has_unsealed, lambda: seal_once(units) > 0)),
        Loop("relay", _relaying(units, broker_url)),
        Loop("fan_out", _woken(units, "muster_sequenced", has_news, lambda: fan_out_once(units))),
        Loop("notifications", _sending(units, make_sender), is_vital=False),
        Loop("judge", _paced(JUDGE_S, lambda: judge_and_evacuate(units))),
        Loop("suspects", _paced(RECONCILE_S, lambda: hold_suspects_once(units, system_principal("judge")))),
        Loop("node_holds", _paced(RECONCILE_S, lambda: hold_nodes_once(units, system_principal("judge")))),
        Loop("silent_agents", _paced(SILENCE_S, lambda: state_silent_agents_once(units, system_principal("judge")))),
        Loop("repairs", _paced(REPAIRS_S, lambda: start_repairs_once(units, system_principal("judge")))),
        Loop("stalls", _paced(STALLS_S, lambda: judge_stalls_once(units, system_principal("watch"))), is_vital=False),
        Loop(
            "stragglers", _paced(STRAGGLERS_S, StragglerRounds(units, system_principal("watch")).once), is_vital=False
        ),
        Loop("idle", _paced(IDLE_S, IdleRounds(units, system_principal("watch")).once), is_vital=False),
        Loop("attention", thrifty(RECONCILE_S, lambda: keep_attention_once(units, principal))),
        Loop("unknown_kinds", _paced(KINDS_S, lambda: sort_unknown_kinds_once(units, system_principal("judge")))),
        Loop("burn_in", _paced(BURN_IN_S, lambda: burn_in_once(units))),
        Loop("reconciler", _paced(RECONCILE_S, lambda: reconcile(units, principal))),
        Loop("clearings", _paced(RECONCILE_S, lambda: evacuate_for_maintenance_once(units, principal))),
        Loop("expiry", _paced(RECONCILE_S, lambda: expire(units, principal))),
        Loop("retention", _pressing(SWEEP_S, lambda: sweep(units))),
        Loop("telemetry", _pressing(TELEMETRY_S, lambda: telemetry.is_behind(telemetry.keep_once(units)))),
        Loop("energy", _paced(ENERGY_S, lambda: keep_energy_once(units))),
        Loop("peers", _paced(PEERS_S, PeerRounds(units, system_principal("judge")).once)),
        Loop("content", _pressing(CONTENT_S, lambda: keep_content_once(units, store)), is_vital=False),
        Loop("lost_content", _pressing(LOST_S, lambda: keep_lost_content(units, store)), is_vital=False),
        Loop("ledger", _pressing(LEDGER_S, lambda: keep_ledger_once(units)), is_vital=False),
        Loop("objectives", thrifty(OBJECTIVES_S, lambda: keep_objectives_once(units)), is_vital=False),
        Loop("tenant_budgets", thrifty(BUDGETS_S, lambda: keep_budgets_once(units, principal))),
        Loop("failure_rates", _paced(FAILURES_S, lambda: count_once(units))),
        Loop("rollups", _paced(ROLLUPS_S, lambda: take_rollups_once(units)), is_vital=False),
        Loop(
            "figures",
            thrifty(FIGURES_S, lambda: count_figures(patient or units)),
            is_vital=False,
            stalled_s=FIGURES_STALLED_S,
        ),
    ]


def judge_and_evacuate(units: UnitOfWorkFactory) -> None:
    """Judge until nothing is left to judge; then evacuate the jobs whose GPUs are out of service."""
    principal = system_principal("judge")
    work = judges_work(units)
    while work.to_judge and judge_once(units, principal) >= BATCH:
        pass
    if work.to_evacuate:
        evacuate_once(units, principal)


def keep_lost_content(units: UnitOfWorkFactory, store: ObjectStore | None) -> bool:
    """Read what hosts could not read, and hold or release the jobs that need it. Return whether more is left."""
    is_more = check_reports_once(units, store)
    return keep_jobs_once(units) or is_more


def sweep(units: UnitOfWorkFactory) -> bool:
    """Close what has lost its reason, update rows after their hosts, and delete what is past its retention.

    Return whether more is left to delete.
    """
    settle_once(units)
    refresh_drivers_once(units, system_principal("reconciler"))
    while refresh_attributes_once(units, system_principal("reconciler")) >= ATTRIBUTES_BATCH:
        pass
    return retention.is_behind(retention.sweep(units))


def count_figures(units: UnitOfWorkFactory) -> None:
    """Count the hours of the indicators that are due: some from records, one from samples of GPUs."""
    count_figures_once(units)
    count_gpus_once(units)


def burn_in_once(units: UnitOfWorkFactory) -> None:
    """Judge measured burn-ins, expire those without a report, and order the ones that GPUs need."""
    if not has_burn_ins(units):
        return
    principal = system_principal("burn-in")
    judge_burn_ins_once(units, principal)
    expire_once(units, principal)
    order_intake_once(units, principal)
    order_suspected_once(units, principal)


def _woken(
    units: UnitOfWorkFactory,
    channel: Channel,
    has_work: Callable[[UnitOfWorkFactory], bool],
    work: Callable[[], bool],
) -> Callable[[threading.Event], None]:
    """Work until there is nothing left, then wait for a notification.

    ``has_work`` asks one cheap query before each pass, since most passes would find nothing.
    """

    def body(stop: threading.Event) -> None:
        with units.listen(channel) as wakeups:
            while not stop.is_set():
                if not (has_work(units) and work()):
                    wakeups.wait(PAUSE_S)

    return body


def _relaying(units: UnitOfWorkFactory, broker_url: str) -> Callable[[threading.Event], None]:
    def body(stop: threading.Event) -> None:
        ringer = WakeupSender(broker_url)

        def send(topic: str, key: str, payload: dict[str, Any]) -> None:
            if topic != WAKEUP_TOPIC:
                message = f"the topic {topic} has no receiver"
                raise ValueError(message)
            ringer.wake(key, payload["attempt_id"])

        try:
            _woken(units, "muster_outbox", has_due, lambda: not relay_once(units, send).is_idle)(stop)
        finally:
            ringer.close()

    return body


def _sending(units: UnitOfWorkFactory, make_sender: Callable[[], Sender] | None) -> Callable[[threading.Event], None]:
    # One for all runs of the body: after a fault of the database its threads are still there.
    sender = Sender(units, None, Delivery(HttpSender())) if make_sender is None else make_sender()

    def body(stop: threading.Event) -> None:
        with units.listen("muster_notifications") as wakeups:
            while not stop.is_set():
                if not sender.start_due():
                    wakeups.wait(BUSY_S if sender.is_busy else PAUSE_S)
        sender.close()

    return body


def sender_of(units: UnitOfWorkFactory, settings: Settings) -> Sender:
    """Return what sends notifications, as the settings say."""
    mail = None
    if settings.smtp_url is not None:
        mail = MailServer(
            settings.smtp_url, settings.smtp_sender, settings.smtp_password_file, settings.notification_ca_file
        )
    delivery = Delivery(HttpSender(settings.notification_ca_file), mail, settings.console_url or "")
    return Sender(units, keys_of_settings(settings), delivery)


def thrifty(
    pause_s: float, work: Callable[[], object], clock: Callable[[], float] = time.monotonic
) -> Callable[[threading.Event], None]:
    """Return a loop's body that pauses longer where its work takes longer: at scale it must not take a core."""

    def body(stop: threading.Event) -> None:
        took_s = 0.0
        while not stop.wait(min(max(pause_s, took_s * THRIFTY_FACTOR), THRIFTY_S)):
            begun = clock()
            work()
            took_s = clock() - begun

    return body


def _pressing(pause_s: float, work: Callable[[], bool]) -> Callable[[threading.Event], None]:
    """Work at a pace, and again at once where ``work`` returns that more is left."""

    def body(stop: threading.Event) -> None:
        is_behind = False
        while not stop.wait(0 if is_behind else pause_s):
            is_behind = work()

    return body


def _paced(pause_s: float, work: Callable[[], object]) -> Callable[[threading.Event], None]:
    def body(stop: threading.Event) -> None:
        while not stop.wait(pause_s):
            work()

    return body
