"""Sizes as text for persons."""


def size_in_words(num_bytes: int | None) -> str:
    """Return a size as text, in units of powers of 1,000, as disks are sold by."""
    if num_bytes is None:
        return "–"
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:  # the unit's base
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
