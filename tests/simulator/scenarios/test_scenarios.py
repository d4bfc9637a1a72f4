"""Each scenario of ``examples/scenarios`` is decided as the file next to it expects."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.model import Plan
from simulator.scenarios import world
from simulator.scenarios.crashing import DiedError
from simulator.scenarios.document import Scenario
from simulator.scenarios.world import play

SCENARIOS = Path(__file__).parents[3] / "examples" / "scenarios"
FILES = sorted(path for path in SCENARIOS.glob("*.yaml") if not path.name.endswith(".expect.yaml"))


def decided(path: Path) -> list[dict[str, Any]]:
    return play(Scenario.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))))


def is_as(decision: dict[str, Any], expected: dict[str, Any]) -> bool:
    """``why`` is a part of the sentence; all else is equal."""
    return all(
        value in decision.get("why", "") if name == "why" else decision.get(name) == value
        for name, value in expected.items()
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_decided_as_expected(path: Path) -> None:
    """They come in this order, and no other placement or reclaim of the jobs that they name."""
    decisions = decided(path)
    expected = yaml.safe_load(path.with_suffix(".expect.yaml").read_text(encoding="utf-8"))
    rest = iter(decisions)
    for one in expected:
        assert any(is_as(decision, one) for decision in rest), (one, decisions)
    acts = {"placed", "reclaim", "withdrawn"}
    named = {one["job"] for one in expected}
    done = [one for one in decisions if one["job"] in named and one["kind"] in acts]
    assert len(done) == sum(one["kind"] in acts for one in expected), done
    assert decided(path) == decisions, "I19"


def test_every_file_has_its_expectation_and_the_other_way_round() -> None:
    assert {path.with_suffix(".expect.yaml") for path in FILES} == set(SCENARIOS.glob("*.expect.yaml"))


def test_each_situation_that_a_scheduler_is_accepted_by_is_posed() -> None:
    """They have numbers, 1 to 42; letters after a number are further cases of it."""
    posed = {int(path.stem[:2]) for path in FILES if path.stem[:2].isdigit()}
    assert set(range(1, 43)) <= posed


def test_a_running_job_that_finds_no_room_is_refused() -> None:
    running = [{"name": name, "nodes": ["a0"]} for name in ("one", "two")]
    document = {"about": "x", "topology": {"nodes": [{"names": "a0"}]}, "jobs": {"running": running}}
    with pytest.raises(ValueError, match="two takes 8 GPUs of a0, which has 0 left"):
        play(Scenario.model_validate(document))


def test_a_domain_a_quota_and_a_total_are_other_words_for_what_the_form_has() -> None:
    document = {
        "about": "x",
        "topology": {"levels": ["block", "rack"], "nodes": [{"names": "a[0-3]", "domain": "B/A"}]},
        "tenants": [{"name": "t", "quota": {"on_demand": {"ceiling_gpus": 16}}}],
        "jobs": {"queued": [{"name": "two", "tenant": "t", "total_gpus": 16, "queued_s": -1, "required": "rack"}]},
        "requests": [{"at_s": 1, "submit": {"name": "part", "tenant": "t", "total_gpus": 4}}],
        "until_s": 2,
    }
    placed, waits = play(Scenario.model_validate(document))
    assert (placed["kind"], placed["nodes"]) == ("placed", ["a0", "a1"])
    assert (waits["kind"], waits["binding"]) == ("waits", "quota")
    assert waits["reasons"][0]["token"] == "quota"


def test_what_waits_states_its_reasons_with_their_counts_and_which_one_binds() -> None:
    document = {
        "about": "x",
        "topology": {"nodes": [{"names": "a[0-2]", "domain": "A"}]},
        "gpus": [{"node": "a2", "standing": "QUARANTINED"}],
        "jobs": {"running": [{"name": "on", "nodes": ["a0"]}], "queued": [{"name": "two", "nodes": 2}]},
    }
    (waits,) = play(Scenario.model_validate(document))
    counts = {one["token"]: one["num_gpus"] for one in waits["reasons"]}
    assert (counts["standing"], counts["in_use"]) == (8, 8)
    assert waits["binding"] in counts


WITHIN_A_NOTICE = "38-a-crash-within-a-notice.yaml"


def crashed(*crashes: dict[str, Any]) -> list[dict[str, Any]]:
    """Scenario 38 with these crashes in place of its own."""
    document = yaml.safe_load((SCENARIOS / WITHIN_A_NOTICE).read_text(encoding="utf-8"))
    others = [one for one in document["requests"] if "crash" not in one]
    return play(Scenario.model_validate({**document, "requests": [*crashes, *others], "until_s": 400}))


def acts(decisions: list[dict[str, Any]], kind: str, job: str) -> list[dict[str, Any]]:
    return [one for one in decisions if (one["kind"], one["job"]) == (kind, job)]


@pytest.mark.parametrize("first", [None, "reclaim.notify.before_commit", "reclaim.notify.after_commit"])
@pytest.mark.parametrize("then", [None, "placement.place.before_commit", "placement.place.after_commit"])
@pytest.mark.parametrize("down_s", [1, 40, 150])
def test_whenever_it_dies_there_is_one_notice_one_deadline_and_one_beneficiary(
    first: str | None, then: str | None, down_s: int
) -> None:
    crashes = [
        {"at_s": at_s, "crash": {"at": at, "down_s": down_s}} for at_s, at in ((5, first), (60, then)) if at is not None
    ]
    decisions = crashed(*crashes)
    is_told_late = first == "reclaim.notify.before_commit" and down_s > 10
    whose = "thief" if is_told_late else "gang"  # the first job in the queue by then
    (notice,) = [one for one in decisions if one["kind"] == "reclaim"]
    assert (notice["job"], notice["victims"]) == (whose, ["victim"])
    assert notice["deadline_s"] == notice["at_s"] + 120
    assert notice["at_s"] == (10 + down_s if first == "reclaim.notify.before_commit" else 10)
    (left,) = acts(decisions, "interrupted", "victim")
    is_received_late = first == "reclaim.notify.after_commit" and down_s > 90
    received_s = 10 + down_s if is_received_late else notice["at_s"] + 90
    assert left["at_s"] == received_s, "once it has saved, even while the server is down, if a host knows of the notice"
    (placed,) = acts(decisions, "placed", whose)
    assert placed["nodes"] == notice["nodes"]
    assert placed["at_s"] >= left["at_s"]
    assert is_told_late or acts(decisions, "placed", "thief") == []


def test_one_that_forgot_its_notice_as_it_died_would_give_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenario can fail."""

    class Forgetful(world._World):  # nothing that a scenario says makes it forget
        def _carry_out(self, decided: Plan) -> None:
            try:
                super()._carry_out(decided)
            except DiedError:
                self._reclaims.clear()
                raise

    monkeypatch.setattr(world, "_World", Forgetful)
    decisions = crashed({"at_s": 5, "crash": {"at": "reclaim.notify.after_commit", "down_s": 40}})
    assert acts(decisions, "placed", "thief") or len(acts(decisions, "reclaim", "gang")) > 1
