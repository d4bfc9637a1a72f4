"""The host's end of wake-ups: a small Celery worker whose one task writes to the launcher's wake-up socket.

The launcher runs it as a child that dies with it: ``python -m workers.wakeup.listener NODE_ID SOCKET LAUNCHER_PID``,
with the broker's address in the environment, so that it shows in no process list.
"""

import os
import socket
import sys
from pathlib import Path

from celery import Celery

from muster.log_streams import keep_streams_open
from muster.processes import end_with_parent
from workers.wakeup.celery_app import WAKE, host_queue, make_celery
from workers.wakeup.command import BROKER_VARIABLE, ListenerArguments


def poke(wakeup_socket: Path, attempt_id: str) -> None:
    """Wake the launcher. A launcher that does not run needs no wake-up: it heartbeats when it starts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        try:
            bell.sendto(attempt_id.encode()[:128], str(wakeup_socket))
        except OSError:
            return


def make_listener(broker_url: str, wakeup_socket: Path, node_id: str) -> Celery:
    app = make_celery(broker_url, node_id)

    @app.task(name=WAKE)
    def wake(attempt_id: str) -> None:
        poke(wakeup_socket, attempt_id)

    return app


def main(arguments: list[str]) -> None:
    given = ListenerArguments.read(arguments)
    end_with_parent(given.launcher_pid)
    keep_streams_open()
    app = make_listener(os.environ[BROKER_VARIABLE], given.wakeup_socket, given.node_id)
    app.worker_main(
        [
            "worker",
            f"--queues={host_queue(given.node_id)}",
            f"--hostname=wakeup@{given.node_id}",
            "--pool=solo",
            "--loglevel=WARNING",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
