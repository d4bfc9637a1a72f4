"""Amount of data that one rank had a step: compared with the other ranks', it shows whether the work is shared out
evenly.
"""

from __future__ import annotations

MOST_EPOCHS = 1e9


class Load:
    """Data of one rank. ``num_samples``: all samples of this attempt; None until the program reports some."""

    def __init__(self) -> None:
        self.num_samples: int | None = None
        self._reported: dict[str, int] = {}
        self._num_steps = 0
        self._epochs: float | None = None

    def note(self, *, samples: int | None = None, tokens: int | None = None, padded: int | None = None) -> None:
        """Add data of this step, in one or several calls. ``padded``: padding of sequences, not counted as tokens.

        A count below 0 adds nothing: the whole report would be refused for it.
        """
        for name, value in (("samples", samples), ("tokens", tokens), ("padded", padded)):
            if value is not None:
                self._reported[name] = self._reported.get(name, 0) + max(int(value), 0)
        if samples is not None:
            self.num_samples = (self.num_samples or 0) + max(int(samples), 0)

    def note_epochs(self, epochs: float | None) -> None:
        """Note how many epochs are done. A number that cannot be one has no effect."""
        if epochs is not None and 0 <= float(epochs) <= MOST_EPOCHS:
            self._epochs = float(epochs)

    def end(self) -> None:
        """Count a finished step."""
        self._num_steps += 1

    def word(self, epochs: float | None = None) -> dict[str, float | int | None]:
        """Return means over the steps since the last call; null for what the program did not report.

        ``epochs``: that are done by the samples that the run chose; what the program reports comes before it.
        """
        told, steps = self._reported, max(self._num_steps, 1)
        tokens, padded = told.get("tokens", 0), told.get("padded")
        filled = None if padded is None or tokens + padded <= 0 else round(padded / (tokens + padded), 5)
        self._reported, self._num_steps = {}, 0
        done = epochs if self._epochs is None else self._epochs
        return {
            "samples": self.num_samples,
            "samples_per_step": round(told["samples"] / steps, 3) if "samples" in told else None,
            "tokens_per_step": round(told["tokens"] / steps, 3) if "tokens" in told else None,
            "padding": filled,
            **({} if done is None else {"epochs": round(done, 6)}),
        }
