"""The control plane's end of wake-ups: one message to one host's queue, fast to fail."""

from typing import Any

from kombu.exceptions import OperationalError

from workers.wakeup.celery_app import WAKE, host_queue, make_celery


class WakeupUndeliveredError(Exception):
    """The broker did not accept the wake-up. Nothing is lost: the host's next heartbeat brings the order."""


class WakeupSender:
    """Sender of wake-ups. It is not for several threads at once: each thread has its own."""

    def __init__(self, broker_url: str) -> None:
        self._app = make_celery(broker_url)

    def wake(self, node_id: str, attempt_id: str) -> None:
        """Wake ``node_id`` about ``attempt_id``.

        Raises:
            WakeupUndeliveredError: the broker refused or did not answer.
        """
        options: dict[str, Any] = {"queue": host_queue(node_id), "retry": False, "expires": None}
        try:
            self._app.send_task(WAKE, args=[attempt_id], **options)
        except (OperationalError, OSError) as error:
            message = f"the broker did not accept the wake-up: {error}"
            raise WakeupUndeliveredError(message) from error

    def close(self) -> None:
        self._app.close()
