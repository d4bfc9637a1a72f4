"""A notification by mail, over the operator's SMTP server, within a time for each step."""

import smtplib
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from control.notifications.http_receiver import words_of
from muster.domain.loopback import is_loopback
from muster.domain.notifications.retries import Outcome, Tried
from muster.plain_files import UnfitFileError, read_private

LIMIT_S: Final = 15.0
_PERMANENT: Final = 500


@dataclass(frozen=True, slots=True)
class MailServer:
    """``url``: ``smtp://`` with STARTTLS beyond loopback, or ``smtps://``; its user is in it. ``sender``: From."""

    url: str
    sender: str
    password_file: Path | None = None
    ca_file: Path | None = None
    limit_s: float = LIMIT_S

    def send(self, message: EmailMessage, receivers: Sequence[str]) -> Tried:
        """Send one mail to all receivers and return how it ended. No fault of the server is raised.

        It is delivered if the server has taken it for any of them; others are named.
        """
        began = time.monotonic()
        try:
            refused = self._sent(message, receivers)
        except smtplib.SMTPRecipientsRefused as fault:
            code, answer = next(iter(fault.recipients.values()))
            return _refusal(code, answer, began)
        except smtplib.SMTPResponseException as fault:
            return _refusal(fault.smtp_code, fault.smtp_error, began)
        except smtplib.SMTPException as fault:
            return Tried(Outcome.AWAY, str(fault)[:300], took_ms=_ms_since(began))
        except UnfitFileError as fault:
            return Tried(Outcome.AWAY, f"MUSTER_SMTP_PASSWORD_FILE {fault}"[:300], took_ms=_ms_since(began))
        except OSError as fault:
            return Tried(Outcome.AWAY, words_of(fault), took_ms=_ms_since(began))
        words = "accepted" if not refused else f"accepted, but not for {', '.join(sorted(refused))}"
        return Tried(Outcome.DELIVERED, words, 250, _ms_since(began))

    def _sent(self, message: EmailMessage, receivers: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        trust = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        if parts.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, parts.port or 465, timeout=self.limit_s, context=trust)
        else:
            server = smtplib.SMTP(host, parts.port or 587, timeout=self.limit_s)
        with server:
            if parts.scheme == "smtp" and not is_loopback(host):
                server.starttls(context=trust)
            if parts.username is not None:
                password = "" if self.password_file is None else read_private(self.password_file).strip()
                server.login(unquote(parts.username), password)
            return server.send_message(message, self.sender, list(receivers))


def _refusal(code: int, words: bytes | str, began_s: float) -> Tried:
    text = words.decode(errors="replace") if isinstance(words, bytes) else words
    outcome = Outcome.REFUSED if code >= _PERMANENT else Outcome.AWAY
    return Tried(outcome, f"{code} {' '.join(text.split())}"[:300], code, _ms_since(began_s))


def _ms_since(began_s: float) -> int:
    return round((time.monotonic() - began_s) * 1000)
