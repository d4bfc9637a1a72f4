"""The kinds of ``MUSTER_TRAIN_FAULTS`` in a few jobs, for a stack and for ``muster run``: how each is named.

A job meets several of them one after the other, each once. All jobs run at the same time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = Path(__file__).resolve().parents[1] / "examples" / "train_transformer.py"
EVERY: Final = 5
SHORT_WINDOW_S: Final = 0.6
"""Windows of stragglers of 4 steps each."""


@dataclass(frozen=True, slots=True)
class FaultyJob:
    """A job with faults. ``ends``: the causes of its attempts; ``words``: by kind, what a sentence about it holds."""

    name: str
    faults: str
    num_ranks: int
    ends: tuple[str, ...]
    words: Mapping[str, tuple[str, ...]]
    fields: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 30

    @property
    def kinds(self) -> set[str]:
        return {word.partition("@")[0] for word in self.faults.split()}

    @property
    def program(self) -> dict[str, Any]:
        words = ["--steps", str(self.steps), "--checkpoint-every", str(EVERY), "--step-sleep", "0.15"]
        return {"script": str(PROGRAM), "args": words, "env": {"MUSTER_TRAIN_FAULTS": self.faults}}

    def unnamed(self, sentences: Iterable[str]) -> set[str]:
        """Return the kinds that no sentence names."""
        said = list(sentences)
        return {
            kind
            for kind, words in self.words.items()
            if not any(all(word in sentence for word in words) for sentence in said)
        }


JOBS: Final = (
    FaultyJob(
        "ends",
        "exception@6/0 exit@12/1=3 kill@18/0",
        2,
        ("user_error", "user_error", "user_error", "succeeded"),
        {
            "exception": ("rank 0", "InjectedFaultError"),
            "exit": ("rank 1 ended with code 3",),
            "kill": ("rank 0", "SIGKILL"),
        },
        {"restart": {"max_restarts": 4}},
    ),
    FaultyJob("stops", "stop@14/1", 2, ("hang", "succeeded"), {"stop": ("Rank 1 ", "stopped")}),
    FaultyJob("hangs", "hang@14/1", 2, ("hang", "succeeded"), {"hang": ("Rank 1 ", "train_transformer.py:")}),
    FaultyJob(
        "values",
        "nan@8/1 flip_weight@17/2=9",
        3,
        ("succeeded",),
        {
            "nan": ("the loss is nan on rank 1",),
            "flip_weight": ("is false on rank 2 of 3 ranks with copies",),
        },
        {"on_value_fault": "rollback"},
    ),
    FaultyJob(
        "disk",
        "full_disk@9-12/0 flip_file@22/0 exit@23/0",
        2,
        ("user_error", "succeeded"),
        {
            "full_disk": ("No space left on device",),
            "flip_file": ("step-00000020/", "differs from what was saved"),
        },
    ),
    FaultyJob(
        "slows",
        "slow@28-79/1=0.3",
        3,
        ("succeeded",),
        {"slow": ("Rank 1 ", "longer than the 2 ranks of its place")},
        steps=80,
    ),
)
