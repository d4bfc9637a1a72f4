"""A clock in seconds that stands until a test moves it."""


class HandClock:
    """``now_s``: the time that it shows."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
