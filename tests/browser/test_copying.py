"""“Copy as CLI / curl”: the text on the clipboard is what stands on the page, and asks what the page shows."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from muster.domain.principals import Role
from tests.browser.browsing import Browsing
from tests.browser.control_plane import ControlPlane
from tests.browser.small_fleet import SmallFleet
from tests.warm_python import WarmPython

CURL = re.compile(r'curl -H "Authorization: Bearer \$MUSTER_API_KEY" "\$MUSTER_API_URL(/v1/[^"$`]+)"')
COMMAND_S = 300
AT_ONCE = 4


def copied(person: Browsing) -> tuple[str, str]:
    """Both lines of the page, as they lie on the clipboard after each button was pressed."""
    person.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    person.page.get_by_text("Copy as CLI / curl").click()
    found = []
    for line in person.page.locator(".same-by .line").all():
        line.get_by_role("button").click()
        person.page.locator("[data-toast]", has_text="Copied").wait_for(state="attached")
        shown = line.locator("code").inner_text()
        assert person.page.evaluate("navigator.clipboard.readText()") == shown
        found.append(shown)
    return found[0], found[1]


@pytest.fixture
def places(fleet: SmallFleet) -> Mapping[str, str]:
    """Each page with what both answers must have in them."""
    return {
        "": "GPU-h100-1-0",
        "gpus?standing=QUARANTINED&model=H100": fleet.hit.gpu,
        f"gpus/{fleet.hit.gpu}": "XID 95",
        "nodes?name=a100": "a100-1",
        "nodes/h100-1": "h100-1",
        "jobs?state=FAILED": "wrong-config",
        f"jobs/{fleet.hit.job_id}": "pretrain",
        "reclaims?state=NOTIFIED": "NOTIFIED",
        "incidents": "quota_below_holdings",
        "events?kind=gpu.quarantined": fleet.hit.gpu,
        "audit?action=quota.set": "quota.set",
        "system": "breaker",
        "access": "local-operator",
    }


def test_what_is_copied_answers_what_the_page_shows(
    console: Browsing, control_plane: ControlPlane, places: Mapping[str, str], warm_muster: WarmPython
) -> None:
    lines = {}
    for place in places:
        console.open(f"/console/{place}".removesuffix("/"))
        lines[place] = copied(console)
    console.keep("open")
    headers = {"Authorization": f"Bearer {control_plane.key(Role.OPERATOR)}"}
    for place, (_, request) in lines.items():
        found = CURL.fullmatch(request)
        assert found, request
        answer = httpx.get(control_plane.url + found[1], headers=headers, timeout=60)
        assert answer.status_code == 200, f"{request}: {answer.text}"
        assert places[place] in answer.text, request
    with ThreadPoolExecutor(AT_ONCE) as pool:
        folder = warm_muster.command("muster")
        answers = pool.map(lambda line: answer_of(line[0], control_plane, folder), lines.values())
        said = dict(zip(lines, answers, strict=True))
    for place, words in places.items():
        assert words.lower() in said[place].lower(), f"{lines[place][0]}: {said[place]}"


def answer_of(command: str, control_plane: ControlPlane, folder: Path) -> str:
    """What a shell says that is given the copied words. ``folder``: of the ``muster`` that it finds."""
    variables = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(control_plane.folder),
        "COLUMNS": "400",
        "MUSTER_API_URL": control_plane.url,
        "MUSTER_API_KEY_FILE": str(control_plane.identities.operator_key_file),
    }
    answer = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=control_plane.folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S,
    )
    assert answer.returncode == 0, f"{command}: {answer.stdout}{answer.stderr}"
    return answer.stdout


def test_a_filter_is_copied_as_a_word_and_never_as_a_command(console: Browsing, fleet: SmallFleet) -> None:
    console.open("/console/gpus?model=H100%27;%20$(touch%20/tmp/x)%20%60id%60")
    command, request = copied(console)
    assert command == """muster gpu list --model 'H100'"'"'; $(touch /tmp/x) `id`'"""
    assert CURL.fullmatch(request)


def test_an_id_is_copied_whole_though_it_is_shown_short(console: Browsing, fleet: SmallFleet) -> None:
    console.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    console.open(f"/console/jobs/{fleet.hit.job_id}")
    console.page.get_by_role("button", name="Copy the id").click()
    assert console.page.evaluate("navigator.clipboard.readText()") == fleet.hit.job_id
    console.page.get_by_text("What was submitted").click()
    console.page.get_by_role("button", name="Copy the specification").click()
    told = json.loads(console.page.evaluate("navigator.clipboard.readText()"))
    assert told["program"]["args"] == ["--config", "base.yaml"]
