"""The choice repeats by its seed, shares out by decisions, and skips what was rejected."""

from collections import Counter
from pathlib import Path

from tools.mutants.choice import DECISIONS, MAX_IN_FILE, all_mutants, choose
from tools.mutants.mutant import Mutant
from tools.mutants.records import Choice, reject


def mutants(package: str, number: int, in_function: int = 1) -> list[Mutant]:
    return [
        Mutant(f"{package}/f{at // 8}.py", f"g{at // in_function}", f"if a < {at}:", 0, "comparison", f"if a <= {at}:")
        for at in range(number)
    ]


def test_it_repeats_by_its_seed() -> None:
    held = mutants("health", 80)
    assert choose(held, 7, 10, ()) == choose(held, 7, 10, ())
    assert choose(held, 7, 10, ()) != choose(held, 8, 10, ())


def test_an_edit_of_other_code_leaves_the_choice_as_it_is() -> None:
    held = mutants("health", 80)
    other = Mutant("health/f0.py", "new", "if a < b:", 0, "comparison", "if a <= b:")
    before, after = choose(held, 7, 10, ()), choose([*held[:3], other, *held[4:]], 7, 10, ())
    assert len(set(before) & set(after)) >= 9


def test_packages_have_their_share_of_the_decisions() -> None:
    held = mutants("health", 240) + mutants("scheduler", 80) + mutants("muster/domain", 80)
    chosen = Counter(one.path.split("/")[0] for one in choose(held, 7, 10, ()))
    assert chosen == {"health": 6, "scheduler": 2, "muster": 2}


def test_a_function_has_one_and_a_file_two() -> None:
    chosen = choose(mutants("health", 80, in_function=4), 7, 20, ())
    assert len({(one.path, one.function) for one in chosen}) == len(chosen)
    assert max(Counter(one.path for one in chosen).values()) == MAX_IN_FILE


def test_the_next_takes_the_place_of_a_rejected_one_and_the_others_stay() -> None:
    held = mutants("health", 80)
    first = choose(held, 7, 5, ())
    again = choose(held, 7, 5, {first[2].key})
    assert first[2] not in again
    assert again[:4] == [*first[:2], *first[3:]]
    assert len(again) == 5


def test_a_change_that_is_rejected_from_another_choice_leaves_this_one_as_it_is(tmp_path: Path) -> None:
    stored = Choice(7, 3, tuple(mutants("health", 3)), {"old": "equal"})
    after = reject(tmp_path, stored, {"other": "both ways are right"})
    assert after.mutants == stored.mutants
    assert after.rejected == {"old": "equal", "other": "both ways are right"}


def test_only_the_code_that_decides_is_chosen(tmp_path: Path) -> None:
    paths = ("health/a.py", "muster/domain/lifecycle/b.py", "muster/domain/c.py", "muster/train/d.py", "agents/e.py")
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("def f(a):\n    if a < 3:\n        return 1\n", encoding="utf-8")
    assert {one.path for one in all_mutants(tmp_path)} == set(paths)
    assert {one.path for one in all_mutants(tmp_path, DECISIONS)} == {paths[0], paths[1], paths[3]}
