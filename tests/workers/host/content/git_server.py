"""Real git repositories, and a server of them over http: git's own backend behind a token, or plain files."""

import base64
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

GIT: Final = shutil.which("git") or "git"
_AUTHOR: Final = {
    "GIT_AUTHOR_NAME": "dana",
    "GIT_AUTHOR_EMAIL": "dana@example.org",
    "GIT_COMMITTER_NAME": "dana",
    "GIT_COMMITTER_EMAIL": "dana@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}


@dataclass(frozen=True)
class WorkTree:
    """A work tree, from which commits are pushed to a bare repository that is served."""

    folder: Path
    bare: Path

    @classmethod
    def new(cls, folder: Path, served: Path, name: str = "code.git") -> "WorkTree":
        folder.mkdir()
        tree = cls(folder, served / name)
        tree.git("init", "--quiet", "--initial-branch=main")
        subprocess.run([GIT, "init", "--quiet", "--bare", "--initial-branch=main", tree.bare], check=True)
        return tree

    def git(self, *words: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            [GIT, "-C", self.folder, *words],
            env={**os.environ, **_AUTHOR},
            input=stdin,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, **files: bytes) -> str:
        """Commit files, push them, and return the commit's id. ``__`` in a name is a slash."""
        for name, content in files.items():
            path = self.folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.git("add", "--all", "--force")
        return self.push()

    def push(self) -> str:
        """Commit what is added, push it, and return the commit's id."""
        self.git("commit", "--quiet", "--allow-empty", "--message=more")
        self.git("push", "--quiet", str(self.bare), "main")
        return self.git("rev-parse", "HEAD")


@dataclass
class GitServer:
    """``token``: what each request needs; None: nothing. ``is_open``: while it is not set, no pack is answered.

    ``moved_to``: where each request is sent on to. ``is_plain``: the files of a repository, as any web server has them.
    """

    url: str
    root: Path
    token: str | None = None
    moved_to: str | None = None
    is_plain: bool = False
    requested: list[str] = field(default_factory=list)
    is_open: threading.Event = field(default_factory=threading.Event)

    @property
    def origin(self) -> str:
        return self.url.rpartition("/")[0]

    def num_packs(self) -> int:
        """How many fetches request for a commit."""
        return sum(line.startswith("POST") for line in self.requested)


@contextmanager
def git_server(root: Path) -> Iterator[GitServer]:
    """Serve the repositories in ``root``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            _answer(served, self)

        def do_POST(self) -> None:
            _answer(served, self)

        def log_message(self, *args: Any) -> None:
            del args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = GitServer(f"http://127.0.0.1:{server.server_port}/code.git", root)
    served.is_open.set()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.is_open.set()
        server.shutdown()
        server.server_close()
        thread.join(60)


def _answer(served: GitServer, request: BaseHTTPRequestHandler) -> None:
    served.requested.append(f"{request.command} {request.path}")
    body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
    if served.moved_to is not None:
        request.send_response(301)
        request.send_header("Location", served.moved_to + request.path)
        request.end_headers()
    elif served.token is not None and not _has_token(served.token, request.headers.get("Authorization", "")):
        request.send_response(401)
        request.send_header("WWW-Authenticate", 'Basic realm="git"')
        request.end_headers()
    elif served.is_plain:
        _send_file(served.root / urlsplit(request.path).path.lstrip("/"), request)
    else:
        if request.command == "POST":
            served.is_open.wait(60)
        _send_by_git(served.root, request, body)


def _has_token(token: str, header: str) -> bool:
    kind, _, given = header.partition(" ")
    return kind == "Basic" and base64.b64decode(given).decode().partition(":")[2] == token


def _send_file(path: Path, request: BaseHTTPRequestHandler) -> None:
    request.send_response(200 if path.is_file() else 404)
    request.end_headers()
    if path.is_file():
        request.wfile.write(path.read_bytes())


def _send_by_git(root: Path, request: BaseHTTPRequestHandler, body: bytes) -> None:
    """Answer as CGI, by git's own program."""
    url = urlsplit(request.path)
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        "PATH_INFO": url.path,
        "QUERY_STRING": url.query,
        "REQUEST_METHOD": request.command,
        "CONTENT_TYPE": request.headers.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
        **{name: value for name, value in _AUTHOR.items() if name.startswith("GIT_CONFIG")},
    }
    done = subprocess.run([GIT, "http-backend"], env=environment, input=body, capture_output=True, check=False)
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    headers = [line.partition(": ") for line in head.decode().split("\r\n")]
    status = next((value for name, _, value in headers if name == "Status"), "200 OK")
    request.send_response(int(status.split()[0]))
    for name, _, value in headers:
        if name != "Status":
            request.send_header(name, value)
    with suppress(BrokenPipeError):  # git was killed
        request.end_headers()
        request.wfile.write(content)
