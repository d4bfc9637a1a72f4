"""Which releases of client and server fit, in the one place that decides it."""

import pytest

from muster.domain.versions import fits, misfit_advice, misfit_words, release_of

SERVER = "1.4.2"


@pytest.mark.parametrize("client", ["1.4.2", "1.4.0", "1.4.9", "1.4.2.dev3", "1.4.2+local"])
def test_equal_releases_fit(client: str) -> None:
    assert fits(client, SERVER)


@pytest.mark.parametrize("client", ["1.3.0", "1.5.0", "1.5.0rc1"])
def test_one_release_older_or_newer_fits(client: str) -> None:
    assert fits(client, SERVER)


@pytest.mark.parametrize(
    ("client", "age"), [("1.2.9", "older"), ("0.4.2", "older"), ("1.6.0", "newer"), ("2.4.2", "newer")]
)
def test_what_is_farther_away_does_not_fit_and_the_fault_names_both(client: str, age: str) -> None:
    assert not fits(client, SERVER)
    assert not fits(SERVER, client)
    assert (
        misfit_words(client, SERVER)
        == f"muster-client {client} is too far {age} than the control plane, which is {SERVER}"
    )


@pytest.mark.parametrize("client", [None, "", "curl", "1", "1.x", "1.4 ; rm", "9" * 40 + ".1", "١.٤.٢", "1.4.\n"])
def test_an_unknown_version_is_no_reason_to_refuse(client: str | None) -> None:
    assert release_of(client) is None
    assert fits(client, SERVER)
    assert fits(SERVER, client)


def test_the_advice_names_a_command_and_the_page() -> None:
    advice = misfit_advice("https://muster.example")
    assert "`pip install --upgrade -r https://muster.example/install/client.txt`" in advice
    assert advice.endswith("https://muster.example/install.")
