"""What a page must never do, however it looks: speak to a stranger, break its policy, fail a request, throw.

Requests are observed, and none is intercepted: interception switches the browser's cache off, and each page would load
and compile every script again. No name of another host resolves (``tools/chromium.py``).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, Response

REPORTED_ELSEWHERE: Final = "Failed to load resource"
"""The console's echo of what the response or the failed request says better."""
GIVEN_UP: Final = "net::ERR_ABORTED"
"""The browser dropped a stream or a download because the page was left: no fault."""
LOCAL: Final = frozenset({"data", "blob", "about"})
REPORT_VIOLATIONS: Final = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} by ${event.blockedURI} ${event.sample}`), true);
"""


@dataclass
class Watch:
    """Listens to every page of one context; ``faults`` in the order in which they came."""

    base_url: str
    faults: list[str] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)

    def over(self, context: BrowserContext) -> None:
        context.add_init_script(REPORT_VIOLATIONS)
        context.on("page", self._listen)
        context.on("request", self._on_request)  # a page reports no request from before it was opened

    @contextmanager
    def expecting(self, *statuses: int) -> Iterator[None]:
        """Answers of these statuses are what the test is about."""
        self.expected.update(statuses)
        try:
            yield
        finally:
            self.expected.difference_update(statuses)

    def take(self) -> list[str]:
        """The faults so far, which are then no longer held against the test."""
        taken, self.faults = self.faults, []
        return taken

    def _listen(self, page: Page) -> None:
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.faults.append(f"thrown on {page.url}: {error}"))
        page.on("crash", lambda _: self.faults.append(f"the page crashed: {page.url}"))
        page.on("requestfailed", self._on_failure)
        page.on("response", self._on_response)

    def _is_foreign(self, url: str) -> bool:
        return urlsplit(url).scheme not in LOCAL and not url.startswith(f"{self.base_url}/")

    def _on_request(self, request: Request) -> None:
        if self._is_foreign(request.url):
            self.faults.append(f"a request to a stranger: {request.url}")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(REPORTED_ELSEWHERE):
            self.faults.append(f"console: {message.text}")

    def _on_failure(self, request: Request) -> None:
        if request.failure != GIVEN_UP and not self._is_foreign(request.url):
            self.faults.append(f"failed: {request.method} {request.url}: {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.faults.append(f"{response.status}: {response.request.method} {response.url}")
