"""docs/reference/policy.md says what the schema of the policy says, of every field of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from muster.domain.policy.document import Policy
from muster.domain.strict import StrictModel
from tools import policy_reference
from tools.policy_reference import PAGE, UndescribedFieldError, main, written


def models_of(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        below = policy_reference._model_of(field)
        if below is not None:
            yield from models_of(below)


def test_the_committed_page_is_what_the_schema_states() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run `make policy-reference`"
    assert main(["--check"]) == 0


def test_every_field_of_the_policy_stands_in_the_page() -> None:
    page = written()
    for model in models_of(Policy):
        for name, field in model.model_fields.items():
            is_section = policy_reference._model_of(field) is not None
            assert (name if is_section else f"| `{name}` |") in page, f"{model.__name__}.{name}"


def test_a_field_without_words_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare(StrictModel):
        """Words."""

        speed: int = 3

    class Whole(StrictModel):
        """Words."""

        bare: Bare = Field(default_factory=Bare)

    monkeypatch.setattr(policy_reference, "Policy", Whole)
    with pytest.raises(UndescribedFieldError, match=r"Bare\.speed"):
        written()


def test_a_page_that_was_changed_by_hand_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "policy.md"
    changed.write_text(written().replace("How often", "How rarely"), encoding="utf-8")
    monkeypatch.setattr(policy_reference, "PAGE", changed)
    assert main(["--check"]) == 1
    assert "make policy-reference" in capsys.readouterr().err
    assert main([]) == 0
    assert main(["--check"]) == 0
