"""Structured logs of every process: one event a line, with ids, secrets struck out.

No line may stop what it is about: a full or closed log device takes nothing, and the next line that it takes is
preceded by the number of lines that were lost.
"""

import logging
import re
import sys
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Final, TextIO

import structlog

from muster.log_streams import keep_streams_open
from muster.settings import Settings

_SECRET_NAMES: Final = re.compile(r"(?i)(secret|token|password|authorization|api_key)$")
_TOKEN: Final = re.compile(r"mst_[0-9A-Za-z]{6,}")
_SIGNATURE: Final = re.compile(r"(X-Amz-Signature=)[0-9a-fA-F]+")
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^:/@\s]*):([^@\s]+)@")
STRUCK: Final = "[struck out]"


class _Lines:
    """Write each event as a line. The stream has its own lock, whose wait ends: structlog's loggers add one without."""

    def __init__(self, stream: TextIO, *_names: Any) -> None:
        self._stream = stream

    def msg(self, message: str) -> None:
        self._stream.write(message + "\n")

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg


def configure_logs(settings: Settings, component: str) -> None:
    """JSON lines, or coloured words on a terminal; the standard library's loggers go the same way.

    Afterwards neither a line nor a print raises.
    """
    keep_streams_open()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _with_component(component),
        structlog.processors.format_exc_info,
        strike_secrets,
    ]
    is_json = settings.log_format == "json"
    renderer: Any = structlog.processors.JSONRenderer(default=str) if is_json else structlog.dev.ConsoleRenderer()
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=_unfailing(structlog.make_filtering_bound_logger(level)),
        logger_factory=partial(_Lines, sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))


def _unfailing(logger: Any) -> Any:
    """Return the class of loggers with methods that raise nothing, whatever is in an event."""

    def _proxy_to_logger(self: Any, method: str, event: str | None = None, *words: Any, **named: Any) -> Any:
        try:
            return logger._proxy_to_logger(self, method, event, *words, **named)  # noqa: SLF001  # structlog's own hook
        except structlog.DropEvent:
            return None
        except Exception as fault:  # noqa: BLE001  # a line that cannot be made must not stop its subject
            sys.stderr.write(f"a log line could not be made: {event!r}: {type(fault).__name__}\n")
            return None

    return type("UnfailingLogger", (logger,), {"_proxy_to_logger": _proxy_to_logger})


def _with_component(component: str) -> Any:
    def add(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event.setdefault("component", component)
        return event

    return add


def strike_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """No secret reaches a log (I17): by its name, by the shape of our tokens, by its place in an address.

    The signature of an address of the content store is one: with it the address is a permission.
    """
    for name, value in event.items():
        if _SECRET_NAMES.search(name):
            event[name] = STRUCK
        elif isinstance(value, str):
            words = _SIGNATURE.sub(r"\1" + STRUCK, _TOKEN.sub(STRUCK, value))
            event[name] = _URL_PASSWORD.sub(r"\1:" + STRUCK + "@", words)
    return event
