"""Times at which a state is reported."""

from agents.events.states import REPORT_AGAIN_S, Coarseness, StateTeller


def test_a_state_is_reported_at_the_start_when_it_changed_and_once_an_hour() -> None:
    teller = StateTeller()
    told = [teller.is_due({"ecc_enabled": 1}, now_s) for now_s in (0, 60, 120, REPORT_AGAIN_S - 1, REPORT_AGAIN_S)]
    assert told == [True, False, False, False, True]
    assert teller.is_due({"ecc_enabled": 0}, REPORT_AGAIN_S + 1)
    assert not teller.is_due({"ecc_enabled": 0}, 2 * REPORT_AGAIN_S)


def test_a_value_that_cannot_be_read_for_once_is_no_change_and_a_new_one_is() -> None:
    teller = StateTeller()
    assert teller.is_due({"a": 1, "b": 2}, 0)
    assert not teller.is_due({"a": 1}, 60)
    assert not teller.is_due({"a": 1, "b": 2}, 120)
    assert teller.is_due({"a": 1, "b": 2, "c": 0}, 180)


def test_nothing_known_is_nothing_reported() -> None:
    assert not StateTeller().is_due({}, 0)


def test_a_coarse_value_is_reported_again_when_it_left_what_was_reported_by_its_share() -> None:
    teller = StateTeller({"free": Coarseness(share=0.1, floor=100)})
    assert teller.is_due({"free": 1_000}, 0)
    assert not teller.is_due({"free": 905}, 60)
    assert teller.is_due({"free": 899}, 120), "compared with the reported value, however slowly it changed"
    assert teller.is_due({"free": 5}, 180)
    assert not teller.is_due({"free": 14}, 240), "near zero a tenth of the floor"
    assert teller.is_due({"free": 16}, 300)


def test_another_word_is_news_and_one_that_could_not_be_read_is_none() -> None:
    teller = StateTeller()
    state = {"ecc_enabled": 1.0}
    assert teller.is_due(state, 0, {"vbios_version": "96.01", "cuda_version": "12.8"})
    assert not teller.is_due(state, 60, {"vbios_version": "96.01"})
    assert teller.is_due(state, 120, {"vbios_version": "96.02"})
    assert not teller.is_due(state, 180, {"vbios_version": "96.02", "cuda_version": "12.8"})
