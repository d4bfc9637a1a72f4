"""The proof of ``muster up --exit``: a tenant's job by REST, through the real protocol, to SUCCEEDED."""

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from muster.client.transport import Problem, UnreachableError, open_http, send
from muster.embedded.bootstrap import LocalIdentities

PROGRAM: Final = Path(__file__).parents[2] / "examples" / "hello_ranks.py"
NUM_RANKS: Final = 2
TIMEOUT_S: Final = 120.0
_TERMINAL: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "HELD"})


def prove_stack(console: Console, api_url: str, identities: LocalIdentities) -> bool:
    """Submit, follow, check state, ranks' words and released GPUs. Prints what it expected and saw."""
    http = open_http(api_url, identities.tenant_key_file.read_text(encoding="ascii").strip())
    try:
        started = time.monotonic()
        job = _submit(http)
        console.print(f"proof: submitted {job['id']}: {NUM_RANKS} ranks of {PROGRAM.name} under torchrun")
        job = _wait(lambda: _get(http, f"/v1/jobs/{job['id']}"), lambda seen: seen["state"] in _TERMINAL)
        took_s = time.monotonic() - started
        lines = _log_lines(http, job["id"])
    except (Problem, UnreachableError, TimeoutError) as fault:
        console.print(f"[bold red]proof failed:[/] {fault}")
        return False
    finally:
        http.close()
    return _say(console, job, lines, took_s)


def _submit(http: Any) -> dict[str, Any]:
    body = {
        "name": "hello-ranks",
        "program": {"script": str(PROGRAM)},
        "shape": {"nodes": 1, "gpus_per_node": NUM_RANKS},
    }
    job: dict[str, Any] = send(http, "POST", "/v1/jobs", json=body).json()
    return job


def _get(http: Any, path: str) -> dict[str, Any]:
    document: dict[str, Any] = send(http, "GET", path).json()
    return document


def _wait(look: Callable[[], dict[str, Any]], is_enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        seen = look()
        if is_enough(seen):
            return seen
        if time.monotonic() > deadline:
            message = f"expected an end within {TIMEOUT_S:.0f} s; the job is {seen['state']}: {seen['state_reason']}"
            raise TimeoutError(message)
        time.sleep(0.1)


def _log_lines(http: Any, job_id: str) -> list[str]:
    page = _get(http, f"/v1/jobs/{job_id}/logs")
    text = "".join(item["text"] for item in page["items"])
    return [line for line in text.splitlines() if line.startswith("rank ")]


def _say(console: Console, job: dict[str, Any], lines: list[str], took_s: float) -> bool:
    table = Table(title="what was proved", title_justify="left")
    for column in ("step", "expected", "seen", "held"):
        table.add_column(column)
    attempt = (job.get("attempts") or [{}])[-1]
    checks = [
        ("job", "SUCCEEDED", job["state"], job["state"] == "SUCCEEDED"),
        ("ranks", f"{NUM_RANKS} lines", f"{len(lines)} lines", len(lines) == NUM_RANKS),
        ("cause", "succeeded", str(attempt.get("cause")), attempt.get("cause") == "succeeded"),
    ]
    for step, expected, seen, held in checks:
        table.add_row(step, expected, seen, "yes" if held else "NO")
    table.add_row("submit → running", "", _between(job.get("created_at"), attempt.get("running_at")), "")
    table.add_row("submit → ended", "", f"{took_s:.2f} s", "")
    console.print(table)
    for line in lines:
        console.print(f"  {line}")
    if not all(held for *_, held in checks):
        console.print(f"[bold red]not held.[/] {job['state_reason']}; logs are under the state folder, in logs/")
        return False
    console.print("[bold green]held.[/]")
    return True


def _between(start: str | None, end: str | None) -> str:
    if not start or not end:
        return "unknown"
    return f"{(datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds():.2f} s"
