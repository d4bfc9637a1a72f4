"""The command as a real process against the real application: each request goes through a socket into it."""

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.api.conftest import Api
from tests.recorded_server import Answer, Requested, serving
from tests.warm_python import WarmPython

KEPT_HEADERS = ("authorization", "content-type", "idempotency-key", "if-match")


@dataclass
class Typed:
    """A folder in which ``muster`` is typed. ``requested``: the requests so far, as ``METHOD /path``.

    ``before_each``: called with each request before it reaches the application, to play what others do meanwhile.
    """

    api: Api
    folder: Path
    python: Path
    url: str = ""
    requested: list[str] = field(default_factory=list)
    before_each: Callable[[str], None] | None = None

    def run(
        self, *words: str, actor: str = "tenant_member", code: int = 0, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Type a command with the key of ``actor``, and require its exit code."""
        key = self.folder / f"{actor}.key"
        key.write_text(self.api.tokens[actor])
        answer = subprocess.run(
            [self.python, "-m", "muster", *words],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "COLUMNS": "100",
                "MUSTER_API_URL": self.url,
                "MUSTER_API_KEY_FILE": str(key),
                **environment,
            },
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        assert "Traceback" not in answer.stdout + answer.stderr
        assert answer.returncode == code, answer.stdout + answer.stderr
        return answer

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def changes(self) -> list[str]:
        """Return the changes that were requested so far, without dry runs and questions."""
        found = [each for each in self.requested if not each.startswith("GET ") and "dry_run" not in each]
        return [each for each in found if not each.endswith(("/check", "/job-plans"))]


@pytest.fixture
def typed(api: Api, tmp_path: Path, warm_muster: WarmPython) -> Iterator[Typed]:
    """Serve the application at an address of its own meanwhile."""
    typed = Typed(api, tmp_path, warm_muster.path)

    def answer(request: Requested, _number: int) -> Answer:
        typed.requested.append(words := f"{request.method} {request.path}")
        if typed.before_each is not None:
            typed.before_each(words)
        headers = {name: value for name, value in request.headers.items() if name in KEPT_HEADERS}
        given = api.client.request(request.method, request.path, headers=headers, content=request.body)
        kept = {name: value for name, value in given.headers.items() if name in {"etag", "content-type"}}
        return Answer(given.status_code, raw=given.content, headers={"Content-Type": "application/json", **kept})

    with serving(answer) as server:
        typed.url = server.url
        yield typed
