"""The judge against labelled bundles. The first twenty were written before the classifier."""

from pathlib import Path

import pytest

from muster.domain.exit.fault_lines import Role
from tests.watch.bundles.labelled import Bundle, bundles_of, is_right
from watch.forensics.judge import judge_hang
from watch.forensics.line_evidence import quotes_in

FOLDER = Path(__file__).parent
FIRST = bundles_of(FOLDER / "first_twenty.json")
RECORDED = bundles_of(FOLDER / "recorded.json")
ALL = (*FIRST, *RECORDED, *bundles_of(FOLDER / "further.json"))


@pytest.mark.parametrize(("bundles", "num_least"), [(FIRST, 20), (RECORDED, 12), (ALL, 60)])
def test_the_cause_and_the_rank_are_right_in_95_of_100_bundles(bundles: tuple[Bundle, ...], num_least: int) -> None:
    assert len(bundles) >= num_least
    wrong = [each.name for each in bundles if not is_right(each, judge_hang(each.reports))]
    assert len(wrong) <= 0.05 * len(bundles), wrong


def test_a_cascade_is_never_chosen_over_a_root() -> None:
    """Of each bundle with a root line, no verdict rests first on a line that is a cascade or a symptom."""
    num_both = 0
    for bundle in ALL:
        quotes = quotes_in(bundle.reports)
        roots = {each.words for each in quotes if each.finding.role is Role.ROOT}
        followers = {each.words for each in quotes if each.finding.role is not Role.ROOT}
        num_both += bool(roots and followers)
        printed = [line for line in judge_hang(bundle.reports).evidence if line in roots | followers]
        if roots and printed:
            assert printed[0] in roots, bundle.name
    assert num_both >= 10


def test_a_rank_at_fault_is_never_among_those_that_wait() -> None:
    for bundle in ALL:
        verdict = judge_hang(bundle.reports)
        assert not set(verdict.ranks) & set(verdict.waiting), bundle.name
        assert verdict.sentence.endswith("."), bundle.name


def test_the_order_of_hosts_and_ranks_changes_nothing() -> None:
    for bundle in ALL:
        there = judge_hang(bundle.reports)
        back = judge_hang(bundle.reports[::-1])
        assert (back.cause, back.ranks, back.node, back.sentence) == (
            there.cause, there.ranks, there.node, there.sentence
        ), bundle.name  # fmt: skip
