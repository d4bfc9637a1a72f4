"""The API's own documents, in a browser."""

from tests.browser.browsing import Browsing


def test_the_api_describes_itself_to_a_stranger(stranger: Browsing) -> None:
    stranger.open("/v1/docs")
    stranger.see("/v1/jobs")
    stranger.keep("docs")
