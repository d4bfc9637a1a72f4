"""What the browser tests rest on: a page that does what no page may is found out."""

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Route

from tests.browser import browsing
from tests.browser.browsing import PATIENCE_MS, SCREENSHOTS, Browsing, Check

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
GOOD = "<!doctype html><html lang=en><title>Page</title><main><h1>A page</h1>{}</main></html>"
Serve = Callable[..., None]


@pytest.fixture
def serve(stranger: Browsing) -> Serve:
    """Puts a page of these words, and perhaps a script, in place of what the control plane would answer."""

    def put(words: str = "", script: str | None = None) -> None:
        tag = "" if script is None else '<script src="/made-up.js"></script>'

        def page(route: Route) -> None:
            headers = {"Content-Security-Policy": POLICY}
            route.fulfill(body=GOOD.format(words + tag), content_type="text/html; charset=utf-8", headers=headers)

        stranger.page.route("**/made-up", page)
        stranger.page.route("**/made-up.js", lambda route: route.fulfill(body=script, content_type="text/javascript"))
        stranger.open("/made-up")

    return put


def settled(stranger: Browsing, num_faults: int = 1) -> list[str]:
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while len(stranger.watch.faults) < num_faults:
        assert time.monotonic() < deadline, stranger.watch.faults
        stranger.page.wait_for_timeout(20)  # the browser's events are read meanwhile
    return stranger.watch.take()


def test_a_good_page_passes(stranger: Browsing, serve: Serve) -> None:
    serve("<p>Nothing is wrong.</p>")
    stranger.inspect()
    assert stranger.watch.faults == []


def test_an_error_in_the_console_is_a_fault(stranger: Browsing, serve: Serve) -> None:
    serve(script="console.error('not good')")
    assert settled(stranger) == ["console: not good"]


def test_an_exception_is_a_fault(stranger: Browsing, serve: Serve) -> None:
    serve(script="setTimeout(() => { throw new Error('lost'); })")
    assert "lost" in settled(stranger)[0]


@pytest.mark.parametrize(
    "words", ["<p style='color: red'>red</p>", "<script>alert(1)</script>", "<img src=x onerror=a()>"]
)
def test_what_the_policy_forbids_is_a_fault(stranger: Browsing, serve: Serve, words: str) -> None:
    with stranger.expecting(404):
        serve(words)
        assert any("policy violated" in fault for fault in settled(stranger, 2))


def test_eval_is_a_fault(stranger: Browsing, serve: Serve) -> None:
    serve(script="try { eval('1') } catch { }")
    assert any("policy violated: script-src" in fault for fault in settled(stranger))


def test_a_request_to_a_stranger_is_refused_and_a_fault(stranger: Browsing) -> None:
    """Even where no policy is in its way."""
    page = GOOD.format("<img src='http://stranger.example/seen.png' alt='none'>")
    stranger.page.route("**/made-up", lambda route: route.fulfill(body=page, content_type="text/html"))
    with stranger.page.expect_event("requestfailed") as failed:
        stranger.open("/made-up")
    assert failed.value.failure == "net::ERR_NAME_NOT_RESOLVED"
    assert settled(stranger) == ["a request to a stranger: http://stranger.example/seen.png"]


def test_a_request_to_another_port_of_this_machine_is_a_fault(stranger: Browsing) -> None:
    page = GOOD.format("<img src='http://127.0.0.1:1/seen.png' alt='none'>")
    stranger.page.route("**/made-up", lambda route: route.fulfill(body=page, content_type="text/html"))
    stranger.open("/made-up")
    assert settled(stranger) == ["a request to a stranger: http://127.0.0.1:1/seen.png"]


def test_pictures_for_inspection_are_kept_by_option(
    stranger: Browsing, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("<p>To be inspected</p>")
    name = "test-harness-test-pictures-for-inspection-are-kept-by-option--inspected-light-1280.png"
    path = SCREENSHOTS / name
    for is_kept in (False, True):
        path.unlink(missing_ok=True)
        monkeypatch.setattr(browsing, "KEEPS_PICTURES", is_kept)
        stranger.keep("inspected")
        assert path.exists() == is_kept


@pytest.mark.parametrize("status", [404, 500])
def test_an_answer_that_none_expected_is_a_fault(stranger: Browsing, serve: Serve, status: int) -> None:
    stranger.page.route("**/part.png", lambda route: route.fulfill(status=status))
    serve("<img src='/part.png' alt='none'>")
    assert [fault.split(" /")[0] for fault in settled(stranger)] == [
        f"{status}: GET {stranger.watch.base_url}/part.png"
    ]


def test_an_answer_that_the_test_is_about_is_none(stranger: Browsing) -> None:
    stranger.open("/v1/nothing-here", status=404)
    assert stranger.watch.faults == []


def test_what_axe_finds_serious_fails_the_page(stranger: Browsing, serve: Serve) -> None:
    serve("<input name=q><img src='/v1/docs' alt=''>")
    with pytest.raises(AssertionError, match=r"label \(critical"):
        stranger.require_accessible()
    stranger.watch.take()


def test_a_page_wider_than_a_phone_fails(stranger: Browsing, serve: Serve) -> None:
    stranger.check(Check("light", 390))
    serve("<pre>" + "wide " * 200 + "</pre>")
    with pytest.raises(AssertionError, match=r"wider than 390 px: \d+ px, .*pre"):
        stranger.require_fit()


def test_the_keyboard_finds_what_it_can_reach_and_states_what_it_cannot(stranger: Browsing, serve: Serve) -> None:
    serve("<button>First</button> <a href='/made-up'>Second</a>")
    assert stranger.tab_to("second").evaluate("one => one.tagName") == "A"
    with pytest.raises(AssertionError, match="does not lead to “third”"):
        stranger.tab_to("third")


def test_pictures_are_kept_by_the_tests_name(stranger: Browsing, serve: Serve) -> None:
    serve("<p>To be seen</p>")
    path = stranger.shot("a picture")
    assert path.name == "test-harness-test-pictures-are-kept-by-the-tests-name--a-picture-light-1280.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_window_of_a_stranger_is_a_fault(stranger: Browsing) -> None:
    page = GOOD.format("<a href='http://127.0.0.1:1/seen' target='_blank'>Away</a>")
    stranger.page.route("**/made-up", lambda route: route.fulfill(body=page, content_type="text/html"))
    stranger.open("/made-up")
    with stranger.page.expect_popup() as opened:
        stranger.page.get_by_role("link", name="Away").click()
    opened.value.close()
    assert settled(stranger) == ["a request to a stranger: http://127.0.0.1:1/seen"]
