"""A notification by mail, over the operator's SMTP server, within a time as a whole.

Only what the server says of this mail, at its receivers or its content, is a refusal. Anything else, such as a wrong
password, is the server's own fault: the route waits.
"""

import contextlib
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from control.core.cut_calls import words_of
from control.notifications.http_receiver import ms_since
from muster.domain.loopback import is_loopback
from muster.domain.notifications.messages import printable
from muster.domain.notifications.retries import Outcome, Tried
from muster.plain_files import UnfitFileError, read_private

STEP_S: Final = 15.0
LIMIT_S: Final = 60.0
_PERMANENT: Final = 500


@dataclass(frozen=True, slots=True)
class MailServer:
    """``url``: ``smtp://`` with STARTTLS beyond loopback, or ``smtps://``; its user is in it. ``sender``: From.

    ``step_s``: the longest wait for one answer; ``limit_s``: for a mail as a whole.
    """

    url: str
    sender: str
    password_file: Path | None = None
    ca_file: Path | None = None
    step_s: float = STEP_S
    limit_s: float = LIMIT_S

    def send(self, message: EmailMessage, receivers: Sequence[str]) -> Tried:
        """Send one mail to all receivers and return how it ended. No fault of the server is raised.

        It is delivered if the server has taken it for any of them; others are named.
        """
        began_s = time.monotonic()
        try:
            refused = self._sent(message, receivers)
        except smtplib.SMTPRecipientsRefused as fault:
            code, answer = next(iter(fault.recipients.values()))
            return _answered(code, answer, began_s)
        except smtplib.SMTPDataError as fault:
            return _answered(fault.smtp_code, fault.smtp_error, began_s)
        except smtplib.SMTPResponseException as fault:
            text = printable(f"{fault.smtp_code} {_text(fault.smtp_error)}")
            return Tried(Outcome.AWAY, text, fault.smtp_code, ms_since(began_s))
        except UnfitFileError as fault:
            return Tried(Outcome.AWAY, printable(f"MUSTER_SMTP_PASSWORD_FILE {fault}"), took_ms=ms_since(began_s))
        except (smtplib.SMTPException, UnicodeError) as fault:
            return Tried(Outcome.AWAY, printable(str(fault)), took_ms=ms_since(began_s))
        except OSError as fault:
            return Tried(Outcome.AWAY, printable(words_of(fault)), took_ms=ms_since(began_s))
        text = "accepted" if not refused else f"accepted, but not for {', '.join(sorted(refused))}"
        return Tried(Outcome.DELIVERED, printable(text), 250, ms_since(began_s))

    def _sent(self, message: EmailMessage, receivers: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        with self._connected() as server:
            return server.send_message(message, self.sender, list(receivers))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[smtplib.SMTP]:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        trust = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        if parts.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, parts.port or 465, timeout=self.step_s, context=trust)
        else:
            server = smtplib.SMTP(host, parts.port or 587, timeout=self.step_s)
        timer = threading.Timer(self.limit_s, _cut, [server])
        timer.daemon = True
        timer.start()
        try:
            if parts.scheme == "smtp" and not is_loopback(host):
                server.starttls(context=trust)
            if parts.username is not None:
                password = "" if self.password_file is None else read_private(self.password_file).strip()
                server.login(unquote(parts.username), password)
            yield server
            with contextlib.suppress(smtplib.SMTPException, OSError):  # the mail is taken, whatever follows
                server.quit()
        finally:
            timer.cancel()
            server.close()


def _cut(server: smtplib.SMTP) -> None:
    sock = server.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _answered(code: int, answer: bytes | str, began_s: float) -> Tried:
    outcome = Outcome.REFUSED if code >= _PERMANENT else Outcome.AWAY
    return Tried(outcome, printable(f"{code} {_text(answer)}"), code, ms_since(began_s))


def _text(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
