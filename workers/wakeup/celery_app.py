"""The Celery application with the settled numbers; made for one broker address."""

from typing import Final

from celery import Celery

WAKE: Final = "muster.ring"
VISIBILITY_S: Final = 60
SOFT_LIMIT_S: Final = 5
HARD_LIMIT_S: Final = 30
KEY_PREFIX: Final = "muster:"
"""Prefix of every key on the broker, so that an access rule can name them all: ``~muster:*``."""


def host_queue(node_id: str) -> str:
    """Return the one queue that a host's worker listens to."""
    return f"host.{node_id}"


def make_celery(broker_url: str, node_id: str | None = None) -> Celery:
    """Return Celery for wake-ups: JSON only, no results, acknowledged late, prefetch 1, no gossip, mingle or remote
    control.

    ``node_id``: of the host that listens. What it has not acknowledged stands under keys of its own, so that an access
    rule can keep other hosts from them.
    """
    own = {} if node_id is None else _own_keys(host_queue(node_id))
    app = Celery("muster", broker=broker_url)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_soft_time_limit=SOFT_LIMIT_S,
        task_time_limit=HARD_LIMIT_S,
        task_create_missing_queues=True,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_soft_shutdown_timeout=10.0,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            **own,
            "global_keyprefix": KEY_PREFIX,
            "visibility_timeout": VISIBILITY_S,
            "socket_connect_timeout": 2,
            "socket_timeout": 5,
            "socket_keepalive": True,
        },
        timezone="UTC",
        enable_utc=True,
    )
    return app


def _own_keys(queue: str) -> dict[str, str]:
    return {f"{name}_key": f"{queue}.{name}" for name in ("unacked", "unacked_index", "unacked_mutex")}
