"""An agent's attributes of a GPU, as texts that can be compared."""

from health.cohort.reported_attributes import attributes_reported
from muster.domain.evidence.state_readings import GPU_STATE, GPU_WORDS, HOST_READING_TEXTS, words_in, words_text
from muster.domain.gpu.cohort_attributes import REPORTED_ATTRIBUTES, SET_UP


def test_states_and_words_become_texts_and_what_was_not_reported_is_not_there() -> None:
    text = words_text({"vbios_version": "96.00.A5.00.01", "cuda_version": "12.8"})
    found = attributes_reported(
        {"power_limit_w": 700.0, "nvlink_mb_per_s": 26_562.0, "fabric_state": 3.0}, text, "1 × E", nic_rate="E"
    )
    assert found == {
        "power_limit_w": "700",
        "nvlink_mb_per_s": "26562",
        "vbios_version": "96.00.A5.00.01",
        "cuda_version": "12.8",
        "network": "1 × E",
        "nic_rate": "E",
    }
    assert attributes_reported({}, "", None) == {}
    host = words_text({"nic_firmware": "28.39.1002", "kernel_release": "6.8.0-45-generic"}, HOST_READING_TEXTS)
    assert attributes_reported({}, "", None, host) == {
        "nic_firmware": "28.39.1002",
        "kernel_release": "6.8.0-45-generic",
    }


def test_a_clique_is_one_of_its_nvlink_domain() -> None:
    here, there = (words_text({"fabric_cluster": uuid * 16}) for uuid in ("0a", "0b"))
    cliques = {attributes_reported({"fabric_clique": 1.0}, text, None)["fabric_clique"] for text in (here, there)}
    assert len(cliques) == 2
    assert attributes_reported({"fabric_clique": 0.0}, "", None) == {"fabric_clique": "0"}
    assert set(REPORTED_ATTRIBUTES) - set(SET_UP) == {"fabric_clique", "nic_rate"}, "no drift, or in another"


def test_every_attribute_is_one_that_agents_report() -> None:
    assert set(REPORTED_ATTRIBUTES) - {"network", "nic_rate"} <= {*GPU_STATE, *GPU_WORDS, *HOST_READING_TEXTS}


def test_words_go_through_a_text_whatever_signs_a_driver_gives_them() -> None:
    assert words_in(words_text({"vbios_version": " 96 00=A5\n", "cuda_version": "", "other": "x"})) == {
        "vbios_version": "96_00_A5"
    }
    assert words_in("") == {}
    assert words_in("firmware_of_a_newer_agent=1 vbios_version=96 blank= GPU") == {"vbios_version": "96"}
