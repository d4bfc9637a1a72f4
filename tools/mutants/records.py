"""The files of the choice and of the results before: ``chosen.json`` and ``before.json`` in this folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from tools.mutants.choice import DECISIONS, all_mutants, choose
from tools.mutants.mutant import Mutant
from tools.mutants.trial import TrialResult

CHOSEN: Final = Path(__file__).with_name("chosen.json")
BEFORE: Final = Path(__file__).with_name("before.json")
SEED: Final = 7
NUMBER: Final = 60
DECIDING: Final = 25


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of mutants. ``rejected``: by key, why a drawn change proves nothing: no test can detect it, or none can
    miss it.
    """

    seed: int
    number: int
    mutants: tuple[Mutant, ...]
    rejected: Mapping[str, str]


def read_choice(root: Path, seed: int | None, number: int | None) -> Choice:
    """Return the stored choice, or a new one from the checkout where another seed or number is asked for."""
    stored = stored_choice()
    if stored is not None and seed in {None, stored.seed} and number in {None, stored.number}:
        return stored
    rejected = {} if stored is None else stored.rejected
    return draw(root, SEED if seed is None else seed, NUMBER if number is None else number, rejected)


def stored_choice() -> Choice | None:
    """Return the choice of ``chosen.json``, if there is one."""
    if not CHOSEN.exists():
        return None
    held = json.loads(CHOSEN.read_text(encoding="utf-8"))
    mutants = tuple(_mutant(row) for row in held["mutants"])
    return Choice(held["seed"], held["number"], mutants, {row["key"]: row["why"] for row in held["rejected"]})


def draw(root: Path, seed: int, number: int, rejected: Mapping[str, str], within: tuple[str, ...] = ("",)) -> Choice:
    """Choose from a checkout. ``within``: in these folders alone."""
    return Choice(seed, number, tuple(choose(all_mutants(root, within), seed, number, rejected)), rejected)


def draw_decisions(root: Path, seed: int | None, number: int | None) -> Choice:
    """Choose from the code that decides. What ``chosen.json`` rejects is explained there, and not drawn."""
    stored = stored_choice()
    rejected = {} if stored is None else stored.rejected
    return draw(root, SEED if seed is None else seed, DECIDING if number is None else number, rejected, DECISIONS)


def reject(root: Path, stored: Choice, why_not: Mapping[str, str]) -> Choice:
    """Return the choice without the changes of ``why_not``. Where it had none of them, the others stay as they are."""
    rejected = {**stored.rejected, **why_not}
    if any(mutant.key in why_not for mutant in stored.mutants):
        return draw(root, stored.seed, stored.number, rejected)
    return replace(stored, rejected=rejected)


def write_choice(root: Path, choice: Choice) -> None:
    """Write ``chosen.json``; a rejected change stands there with its text, so that its reason can be judged.

    One whose line is no longer there keeps the text that it had.
    """
    stored = json.loads(CHOSEN.read_text(encoding="utf-8"))["rejected"] if CHOSEN.exists() else []
    known = {row["key"]: {name: text for name, text in row.items() if name not in {"key", "why"}} for row in stored}
    known |= {mutant.key: asdict(mutant) for mutant in all_mutants(root)} if choice.rejected else {}
    rejected = [{"key": key, "why": why, **known.get(key, {})} for key, why in choice.rejected.items()]
    mutants = [{"key": mutant.key, **asdict(mutant)} for mutant in choice.mutants]
    held = {"seed": choice.seed, "number": choice.number, "mutants": mutants, "rejected": rejected}
    write_json(CHOSEN, held)


def read_results(path: Path) -> dict[str, TrialResult]:
    """Return the results of a run by the keys of the mutants; none where there is no file."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["mutants"]
    names = TrialResult.__dataclass_fields__
    return {row["key"]: TrialResult(**{name: row[name] for name in names if name in row}) for row in rows}


def write_results(path: Path, commit: str, mutants: Sequence[Mutant], results: Mapping[str, TrialResult]) -> None:
    """Write the results of a run, one entry a mutant, in the order of the choice."""
    rows = [{"key": one.key, "place": _place(one), **results[one.key].row()} for one in mutants if one.key in results]
    path.parent.mkdir(exist_ok=True)
    write_json(path, {"commit": commit, "mutants": rows})


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a file in one step: a run that is stopped leaves the file of before."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(path)


def _place(mutant: Mutant) -> str:
    return f"{mutant.path}::{mutant.function}"


def _mutant(row: Mapping[str, Any]) -> Mutant:
    return Mutant(**{name: row[name] for name in Mutant.__dataclass_fields__})
