"""``muster mfu``: golden figures, worked out by hand from the models' published shapes; none where no peak is known."""

import json
from typing import Any

import pytest

from muster.cli.framework import app
from muster.cli.framework.exits import Exit

LLAMA_3_8B = ("--params", "7504658432", "--layers", "32", "--heads", "32", "--head-dim", "128")
"""8,030,261,248 parameters, without the embedding (128,256 × 4,096) and 65 norms of 4,096."""
MIXTRAL = ("--params", "1474297856", "--layers", "32", "--heads", "32", "--head-dim", "128")
"""Mixtral 8x7B without its experts: 32 × (41,943,040 of attention + 4,096 × 8 of the router), a head of 131,072,000."""
ITS_EXPERTS = ("--expert-params", "45097156608", "--experts", "8", "--top-k", "2")
"""32 × 8 × 3 × 4,096 × 14,336; with the embedding and norms it has the 46.7 B parameters that are published, 12.9 B of
them active."""
H100 = ("--model", "NVIDIA H100 80GB HBM3")


class Muster:
    """The command, in this process: it asks no server and keeps nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def run(self, *words: str) -> tuple[int, str, str]:
        """Return the exit code, and the output on either stream, unfolded."""
        self._monkeypatch.setattr("sys.argv", ["muster", "mfu", *words])
        code = app.run()
        said = self._capsys.readouterr()
        return code, said.out, " ".join(said.err.split())

    def reported(self, *words: str) -> dict[str, Any]:
        code, out, errors = self.run(*words, "--json")
        assert code == Exit.OK, errors
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def muster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Muster:
    return Muster(monkeypatch, capsys)


def test_llama_3_8b_on_an_h100(muster: Muster) -> None:
    """6 · 7,504,658,432 + 12 · 32 · 32 · 128 · 8,192 = 57,912,852,480 FLOPs a token."""
    found = muster.reported(*LLAMA_3_8B, "--sequence", "8192", "--tokens-per-s", "48000", "--gpus", "8", *H100)
    assert found["flops_per_token"] == 57_912_852_480
    assert found["peak_tflops"] == 989
    assert found["mfu"] == found["hfu"] == pytest.approx(48_000 * 57_912_852_480 / (8 * 989e12))
    assert round(found["mfu"], 4) == 0.3513


def test_a_causal_mask_halves_the_attention_and_no_more(muster: Muster) -> None:
    words = (*LLAMA_3_8B, "--sequence", "8192", "--tokens-per-s", "6000", *H100)
    full, causal = muster.reported(*words), muster.reported(*words, "--attention", "causal")
    assert (full["attention"], causal["attention"]) == ("full", "causal")
    assert causal["flops_per_token"] == 51_470_401_536
    assert full["mfu"] / causal["mfu"] == pytest.approx(1.125, abs=0.001)


def test_of_a_mixture_of_experts_what_a_token_meets(muster: Muster) -> None:
    """1,474,297,856 + 45,097,156,608 · 2/8 = 12,748,587,008 parameters."""
    found = muster.reported(*MIXTRAL, *ITS_EXPERTS, "--sequence", "4096", "--tokens-per-s", "2000", *H100)
    assert found["matmul_params"] == 12_748_587_008
    assert found["flops_per_token"] == 6 * 12_748_587_008 + 12 * 32 * 32 * 128 * 4096
    assert round(found["mfu"], 4) == 0.1677


def test_packed_sequences_count_each_by_its_own_length(muster: Muster) -> None:
    """Σ Lᵢ² ÷ Σ Lᵢ = (4,096² + 3,072² + 1,024²) ÷ 8,192 = 3,328 tokens that each one meets, and not 8,192."""
    words = (*LLAMA_3_8B, "--tokens-per-s", "6000", *H100)
    packed = muster.reported(*words, "--lengths", "4096,3072,1024")
    assert packed["sequence"] == 3328
    assert packed["flops_per_token"] == 6 * 7_504_658_432 + 12 * 32 * 32 * 128 * 3328
    assert muster.reported(*words, "--lengths", "8192")["mfu"] == muster.reported(*words, "--sequence", "8192")["mfu"]


@pytest.mark.parametrize(
    ("recompute", "again"),
    [("none", 0), ("selective", 4 * 32 * 32 * 128 * 8192), ("full", 2 * 7_504_658_432 + 4 * 32 * 32 * 128 * 8192)],
)
def test_what_is_computed_again_is_the_hardwares_work_and_not_the_models(
    muster: Muster, recompute: str, again: int
) -> None:
    words = (*LLAMA_3_8B, "--sequence", "8192", "--tokens-per-s", "6000", *H100)
    found = muster.reported(*words, "--recompute", recompute)
    assert round(found["mfu"], 4) == 0.3513
    assert found["hfu"] == pytest.approx(6_000 * (57_912_852_480 + again) / 989e12)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA L40S", 362),
        ("NVIDIA L40", 181),
        ("Tesla V100-SXM2-16GB", 125),
        ("AMD Instinct MI300X", 1300),
        ("AMD Instinct MI355X", 2500),
    ],
)
def test_a_gpus_peak_is_its_own(muster: Muster, name: str, peak: float) -> None:
    words = (*LLAMA_3_8B, "--sequence", "8192", "--tokens-per-s", "1000", "--model", name)
    found = muster.reported(*words)
    assert found["peak_tflops"] == peak
    assert found["mfu"] == pytest.approx(1_000 * 57_912_852_480 / (peak * 1e12))


@pytest.mark.parametrize("name", ["NVIDIA A1000", "nvidia l40s", "NVIDIA L40S-Q", "AMD Instinct MI300"])
def test_an_unknown_gpu_has_no_mfu(muster: Muster, name: str) -> None:
    words = (*LLAMA_3_8B, "--sequence", "8192", "--tokens-per-s", "1000", "--model", name)
    code, out, errors = muster.run(*words, "--json")
    assert (code, out) == (Exit.NOT_FOUND, "")
    assert f"no peak is known of '{name}'" in errors
    stated = muster.reported(*LLAMA_3_8B, "--sequence", "8192", "--tokens-per-s", "1000", "--peak-tflops", "362")
    assert stated["peak_source"] == "as stated"


def test_more_than_the_gpus_can_do_is_no_success(muster: Muster) -> None:
    code, out, _ = muster.run(*LLAMA_3_8B, "--sequence", "8192", "--tokens-per-s", "20000", *H100)
    assert code == Exit.INVALID
    assert "More than the GPUs can do" in out


@pytest.mark.parametrize(
    ("words", "code", "reported"),
    [
        ((), Exit.USAGE, "name either --sequence or --lengths"),
        (("--sequence", "8", "--lengths", "8"), Exit.USAGE, "name either --sequence or --lengths"),
        (("--lengths", "4096,,1"), Exit.USAGE, "--lengths '4096,,1' are no lengths of sequences"),
        (("--lengths", "4096,0"), Exit.USAGE, "--lengths '4096,0' are no lengths of sequences"),
        (("--sequence", "8", "--experts", "8"), Exit.USAGE, "takes --expert-params, --experts and --top-k"),
        (
            ("--sequence", "8", "--expert-params", "1e9", "--experts", "8", "--top-k", "9"),
            Exit.USAGE,
            "--top-k 9: top_k must be from 1 to the 8 experts, not 9",
        ),
        (
            ("--sequence", "8", "--model", "Tesla T4", "--dtype", "bf16"),
            Exit.NOT_FOUND,
            "Tesla T4 computes in fp16 alone",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(muster: Muster, words: tuple[str, ...], code: Exit, reported: str) -> None:
    gpu = () if "--model" in words else H100
    found, _, errors = muster.run(*LLAMA_3_8B, "--tokens-per-s", "1000", *words, *gpu)
    assert found == code, errors
    assert reported.lower() in errors.lower()
