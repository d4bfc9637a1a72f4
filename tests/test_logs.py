"""No secret reaches a log (I17): by name, by shape, by place."""

from muster.logs import STRUCK, strike_secrets
from muster.tokens import new_token, read_token


def test_secrets_are_struck_out_by_name_shape_and_place() -> None:
    token = new_token().text
    event = {
        "event": f"came with {token}",
        "api_key": "anything",
        "password": "p",
        "url": "redis://user:pass@host/0",
        "target": "/muster/a?X-Amz-Date=1&X-Amz-Signature=0123456789abcdef",
        "attempt_id": "att_1",
    }
    struck = strike_secrets(None, "info", dict(event))
    assert token not in str(struck)
    assert struck["api_key"] == struck["password"] == STRUCK
    assert "pass@" not in struck["url"]
    assert struck["target"] == f"/muster/a?X-Amz-Date=1&X-Amz-Signature={STRUCK}"
    assert struck["attempt_id"] == "att_1"


def test_a_token_reads_back_and_a_typo_does_not() -> None:
    token = new_token()
    assert read_token(token.text) == token
    for position in range(4, len(token.text)):
        other = "a" if token.text[position] != "a" else "b"
        assert read_token(token.text[:position] + other + token.text[position + 1 :]) is None
    for text in ("", "mst_", token.text[:-1], token.text + "x", token.text.upper(), f"{token.text} "):
        assert read_token(text) is None
