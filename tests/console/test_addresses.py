"""Every address that a page offers, by a link, a form or a part that it loads, is one that the console accepts."""

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import urlsplit

from tests.console.conftest import Console

_LINKS = re.compile(r'(?:href|hx-get|src|data-[a-z-]*)="(/console[^"#]*)')
_FORMS = re.compile(r"<form(?![^>]*method=.?post)([^>]*)>(.*?)</form>", re.DOTALL | re.IGNORECASE)
_NAMES = re.compile(r'<(?:input|select|button|textarea)[^>]*\bname="([^"]+)"')
_ONE_OF_MANY = (
    r"[a-z]+_[0-9a-z]{26}|GPU-[0-9a-z-]+|(?<=/console/figures/)[a-z_]+|(?<=range=)\w+|(?<=by=)\w+|(?<=table=)\w+"
    r"|(?<=sort=)[-.a-z_]+"
)
_ENDLESS = ("/console/live", "/console/fleet/stream", "/logs/follow", "/console/static")
MOST_PAGES = 90


def test_no_address_that_a_page_offers_is_refused_for_its_parameters(seen: Console) -> None:
    seen.fleet.submit()
    seen.fleet.beat()
    seen.fleet.cycle()
    waiting, visited, refused = ["/console", "/console/jobs?done=Submitted"], set[str](), []
    while waiting and len(visited) < MOST_PAGES:
        address = waiting.pop(0)
        kind = re.sub(_ONE_OF_MANY, "*", address)
        if kind in visited or any(part in address for part in _ENDLESS):
            continue
        visited.add(kind)
        answer = seen.get(address)
        if answer.status_code == 422 and "no such parameter" in answer.text:
            refused.append(address)
        if answer.headers.get("content-type", "").startswith("text/html"):
            waiting += _offered(address, answer.text)
    assert refused == []
    assert {"/console/jobs?done=Submitted", "/console/gpus?standing=HEALTHY"} <= visited, "filters were followed"
    assert any(urlsplit(one).path == "/console/plan" and urlsplit(one).query for one in visited), "forms were sent"


def _offered(address: str, html: str) -> Iterator[str]:
    yield from (unescape(found) for found in _LINKS.findall(html))
    for attributes, inner in _FORMS.findall(html):
        action = re.search(r'action="([^"]*)"', attributes)
        path = unescape(action.group(1)) if action else urlsplit(address).path
        names = dict.fromkeys(_NAMES.findall(inner))
        if names and path.startswith("/console"):
            yield f"{path}?{'&'.join(f'{name}=' for name in names)}"
