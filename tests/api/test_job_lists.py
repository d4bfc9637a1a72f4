"""Lists of jobs by condition, with cursors that belong to them; and the words for a condition that cannot be read."""

import pytest

from tests.api.conftest import Api


def names(api: Api, query: str) -> list[str]:
    """Return the names on all pages of a list, a job a page."""
    found, cursor = list[str](), ""
    while True:
        page = api.client.get(f"/v1/jobs?limit=1&{query}{cursor}", headers=api.headers()).json()
        found += [job["name"] for job in page["items"]]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def test_each_condition_goes_through_all_pages(api: Api) -> None:
    for number in range(3):
        api.fleet.submit(name=f"sweep-{number}", labels={"team": "vision", "run": str(number)})
    api.fleet.submit(name="other", tier="spot")
    assert names(api, "label=team%3Dvision") == ["sweep-2", "sweep-1", "sweep-0"]
    assert names(api, "label=team&order=oldest") == ["sweep-0", "sweep-1", "sweep-2"]
    assert names(api, "label=team&label=run%3D1") == ["sweep-1"]
    assert names(api, "tier=spot") == ["other"]
    assert names(api, "node=node_absent") == []
    assert names(api, "since=2999-01-01T00:00:00Z") == []
    assert len(names(api, "until=2999-01-01T00:00:00Z")) == 4


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("label=%3Dvision", "write `name=value` or `name`"),
        ("label=a%3D1&label=a%3D2", "each once"),
        ("since=yesterday", "must be a time with its zone"),
        ("order=random", "newest"),
        ("cabinet=r1", "cabinet"),
    ],
)
def test_a_condition_that_cannot_be_read_is_named(api: Api, query: str, words: str) -> None:
    answer = api.client.get(f"/v1/jobs?{query}", headers=api.headers())
    assert answer.status_code == 422
    assert words in answer.text


def test_a_cursor_belongs_to_its_conditions(api: Api) -> None:
    for _ in range(2):
        api.fleet.submit(labels={"team": "vision"})
    cursor = api.client.get("/v1/jobs?limit=1&label=team", headers=api.headers()).json()["next_cursor"]
    for query in ("label=team&order=oldest", "label=other", "label=team&tier=newest", ""):
        assert api.client.get(f"/v1/jobs?{query}&cursor={cursor}", headers=api.headers()).status_code == 400
