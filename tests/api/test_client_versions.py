"""Versions of clients at the API: named in each answer, refused where they do not fit, unknown ones accepted."""

import pytest

from muster import __version__
from muster.domain.versions import release_of
from tests.api.conftest import GOOD_JOB, Api

MAJOR, MINOR = release_of(__version__) or (0, 0)
FITTING = [__version__, f"{MAJOR}.{MINOR}.99", f"{MAJOR}.{MINOR + 1}.0", "unknown", ""]
MISFITS = [f"{MAJOR + 1}.0.0", f"{MAJOR}.{MINOR + 2}.0"]


def test_each_answer_names_the_servers_version(api: Api) -> None:
    for path in ("/healthz", "/v1/whoami", "/v1/nothing"):
        assert api.client.get(path).headers["muster-version"] == __version__


@pytest.mark.parametrize("version", FITTING)
def test_a_client_that_fits_or_is_unknown_is_answered(api: Api, version: str) -> None:
    headers = api.headers() | {"Muster-Client-Version": version}
    assert api.client.get("/v1/whoami", headers=headers).status_code == 200


@pytest.mark.parametrize("version", MISFITS)
def test_a_client_that_does_not_fit_is_refused_before_anything_happens(api: Api, version: str) -> None:
    refused = api.client.post("/v1/jobs", json=GOOD_JOB, headers=api.headers() | {"Muster-Client-Version": version})
    document = refused.json()
    assert (refused.status_code, document["code"], document["server_version"]) == (426, "client_version", __version__)
    assert f"muster-client {version} is too far newer" in document["detail"]
    assert "pip install --upgrade -r http://127.0.0.1/install/client.txt" in document["suggestion"]
    assert api.client.get("/v1/jobs", headers=api.headers()).json()["items"] == []


def test_other_pages_are_open_to_any_client(api: Api) -> None:
    headers = {"Muster-Client-Version": MISFITS[0]}
    assert api.client.get("/healthz", headers=headers).status_code == 200
