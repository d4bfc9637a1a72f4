"""Pages that are asked for what they do not know. The matrix of tests/authorisation checks permissions."""

import pytest

from muster.domain.states import Standing
from tests.console.conftest import Console


@pytest.mark.parametrize("standing", ["", *Standing])
def test_each_standing_can_be_requested_and_any_of_them(seen: Console, standing: str) -> None:
    assert seen.get(f"/console/gpus?standing={standing}").status_code == 200


@pytest.mark.parametrize(
    "page",
    [
        "/gpus?standing=BROKEN",
        "/gpus?cursor=x",
        "/events?cursor=zz",
        "/audit?cursor=%00",
        "/nodes?cursor=x",
        "/gpus/%00",
        "/gpus/" + "x" * 300,
        "/jobs/job_x",
        "/fleet/at/x/-1",
        "/fleet/at/x/99999999999999999999",
        "/find?q=%00",
        "/find?q=" + "x" * 300,
        "/nowhere",
    ],
)
def test_a_bad_address_is_a_page_that_reports_it(seen: Console, page: str) -> None:
    answer = seen.get(f"/console{page}")
    assert answer.status_code in {200, 400, 404, 422}, page
    assert answer.headers["content-type"].startswith("text/html")
    assert "Traceback" not in answer.text
