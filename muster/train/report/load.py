"""How much of the data one rank had a step: beside the other ranks' it shows whether the work is shared out evenly."""

from __future__ import annotations


class Load:
    """``num_samples``: all that this rank has trained on in this attempt; None while nobody told any."""

    def __init__(self) -> None:
        self.num_samples: int | None = None
        self._told: dict[str, int] = {}
        self._num_steps = 0

    def note(self, *, samples: int | None = None, tokens: int | None = None, padded: int | None = None) -> None:
        """Of this step, perhaps in several pieces. ``padded``: what fills sequences up and is no token."""
        for name, value in (("samples", samples), ("tokens", tokens), ("padded", padded)):
            if value is not None:
                self._told[name] = self._told.get(name, 0) + int(value)
        if samples is not None:
            self.num_samples = (self.num_samples or 0) + int(samples)

    def end(self) -> None:
        """A step is done."""
        self._num_steps += 1

    def word(self) -> dict[str, float | int | None]:
        """Of the steps since the last one; null is what the program did not tell."""
        told, steps = self._told, max(self._num_steps, 1)
        tokens, padded = told.get("tokens", 0), told.get("padded")
        filled = None if padded is None or tokens + padded <= 0 else round(padded / (tokens + padded), 5)
        self._told, self._num_steps = {}, 0
        return {
            "samples": self.num_samples,
            "samples_per_step": round(told["samples"] / steps, 3) if "samples" in told else None,
            "tokens_per_step": round(told["tokens"] / steps, 3) if "tokens" in told else None,
            "padding": filled,
        }
