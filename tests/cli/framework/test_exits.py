"""A fault ends a command with the exit code, the words and the advice of its kind."""

import pytest

from muster.cli.framework.command_words import TYPED_ADVICE
from muster.cli.framework.exits import CommandError, Exit, exit_of
from muster.domain.errors import ForbiddenError, NotFoundError
from muster.settings import SettingsError


def test_a_fault_of_our_own_has_the_code_of_its_status_and_advice_for_a_person() -> None:
    assert exit_of(NotFoundError()) == (Exit.NOT_FOUND, NotFoundError().detail, TYPED_ADVICE["not_found"])
    assert exit_of(NotFoundError(suggestion="look there"))[2] == "look there"
    assert exit_of(ForbiddenError("not yours", permission="key.write"))[:2] == (Exit.DENIED, "not yours")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (SettingsError(["MUSTER_URL: no address"]), Exit.USAGE),
        (CommandError("two answers", "Leave out one.", Exit.USAGE), Exit.USAGE),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (ZeroDivisionError("by zero"), Exit.FAILED),
    ],
)
def test_each_kind_of_fault_has_its_code(fault: BaseException, code: Exit) -> None:
    assert exit_of(fault)[0] is code
