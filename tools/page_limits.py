"""Limits of the pages that people read: size, words a heading, words a paragraph, long sentences.

A page that is not yet within them has its numbers in ``tools/page_limits.json``, where they may only fall. Sentences
of more than 35 words are counted for all pages together, so that a text may move from page to page.

``python -m tools.page_limits`` lists what exceeds a limit, ``--sentences`` each long sentence; ``--lower`` stores lower
numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from tools.house.pages import Page, page_of

ROOT: Final = Path(__file__).resolve().parent.parent
STORED: Final = "tools/page_limits.json"
LONG_SENTENCES: Final = "long sentences of all pages"
WORDS_A_HEADING: Final = 200
WORDS_A_PARAGRAPH: Final = 120
KB: Final = 1000
BYTES: Final = {"README.md": 8 * KB, "ARCHITECTURE.md": 20 * KB, "docs/internals/": 12 * KB}
"""Limits by a page's path, or the beginning of it."""
Numbers = dict[str, int]


def pages(root: Path) -> list[str]:
    """Return the paths of all pages; the changelog lists changes and is no text to read through."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md")]
    return sorted(path.relative_to(root).as_posix() for path in found if path.name != "CHANGELOG.md")


def numbers_of(path: str, text: str, page: Page) -> Numbers:
    """Return the page's numbers that have a limit, each by its name and the page."""
    numbers = {
        f"{path}: words a heading": round(page.words_a_heading),
        f"{path}: words of the longest paragraph": page.longest_paragraph,
    }
    if _bytes_allowed(path) is not None:
        numbers[f"{path}: bytes"] = len(text.encode())
    return numbers


def limits_of(path: str) -> Numbers:
    """Return the limits by the same names."""
    limits = {
        f"{path}: words a heading": WORDS_A_HEADING,
        f"{path}: words of the longest paragraph": WORDS_A_PARAGRAPH,
    }
    allowed = _bytes_allowed(path)
    return limits if allowed is None else limits | {f"{path}: bytes": allowed}


def measured(root: Path) -> tuple[Numbers, Numbers]:
    """Return the numbers of the checkout, and their limits."""
    numbers, limits = {LONG_SENTENCES: 0}, {LONG_SENTENCES: 0}
    for path in pages(root):
        text = (root / path).read_text(encoding="utf-8")
        page = page_of(text)
        numbers |= numbers_of(path, text, page)
        numbers[LONG_SENTENCES] += len(page.long_sentences)
        limits |= limits_of(path)
    return numbers, limits


def exceeded(root: Path) -> list[str]:
    """Return a line for each number that is above its limit, or above what is stored for it."""
    numbers, limits = measured(root)
    stored = _stored(root)
    allowed = {name: max(limits[name], stored.get(name, 0)) for name in numbers}
    return [f"{name}: {numbers[name]}, at most {most}" for name, most in allowed.items() if numbers[name] > most]


def lower(root: Path) -> None:
    """Store the numbers above their limits where they have fallen; drop the others."""
    numbers, limits = measured(root)
    stored = _stored(root)
    path = root / STORED
    kept = {
        name: min(number, stored.get(name, number if not path.exists() else 0))
        for name, number in numbers.items()
        if number > limits[name]
    }
    path.write_text(
        json.dumps({name: number for name, number in kept.items() if number}, indent=1) + "\n", encoding="utf-8"
    )


def _bytes_allowed(path: str) -> int | None:
    return next((most for beginning, most in BYTES.items() if path.startswith(beginning)), None)


def _stored(root: Path) -> Numbers:
    path = root / STORED
    found: Numbers = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def main(arguments: list[str]) -> int:
    """Return the exit code: 1 where a number is above what is allowed."""
    if arguments == ["--lower"]:
        lower(ROOT)
        return 0
    if arguments == ["--sentences"]:
        for path in pages(ROOT):
            for sentence in page_of((ROOT / path).read_text(encoding="utf-8")).long_sentences:
                sys.stdout.write(f"{path}: {sentence}\n")
        return 0
    found = exceeded(ROOT)
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
