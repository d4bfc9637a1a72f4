"""What is wrong with an option's value is reported by the option's name, with what is accepted."""

import sys

import pytest

from muster.cli.framework import app
from muster.cli.framework.exits import Exit

SUBMIT = ("job", "submit")
PLAN = ("job", "plan")


@pytest.mark.parametrize(
    ("words", "option", "accepted"),
    [
        ((*PLAN, "--wall-time", "5 minutes"), "--wall-time", "write 30s, 10m, 2h or 1d"),
        ((*PLAN, "--slice", "rack"), "--slice", "NAME=NUMBER, such as rack=16"),
        ((*PLAN, "--slice", "rack=²"), "--slice", "NAME=NUMBER, such as rack=16"),
        ((*PLAN, "--layout", "tp=x"), "--layout", "'tp=x' is not NAME=NUMBER, such as tp=8"),
        ((*PLAN, "--layout", "zz=1"), "--layout", "pp, dp, fsdp and tp are"),
        ((*PLAN, "--layout", "tp=2,tp=4"), "--layout", "tp appears twice"),
        ((*PLAN, "--tp-across-nodes"), "--tp-across-nodes", "--layout"),
        ((*PLAN, "--on-label", "zone"), "--on-label", "'zone' is not NAME=VALUE"),
        ((*PLAN, "--not-on-label", "=a"), "--not-on-label", "'=a' is not NAME=VALUE"),
        ((*PLAN, "--total-gpus", "8", "--nodes", "2"), "--total-gpus", "leave out --nodes"),
        ((*PLAN, "--env", "A=b"), "--env", "it is of a program: give that too, such as `-- train.py`"),
        ((*PLAN, "--git-secret", "key"), "--git-secret", "it is of a program"),
        ((*PLAN, "--image", "i", "--mount", "/a"), "--image", "it is of a program"),
        ((*SUBMIT, "--memory", "64", "a.py"), "--memory", "write 512MiB, 64GiB or 1.5TiB"),
        ((*SUBMIT, "--disk-reads", "x", "a.py"), "--disk-reads", "write 512MiB, 64GiB or 1.5TiB"),
        ((*SUBMIT, "--disk-writes", "x", "a.py"), "--disk-writes", "write 512MiB, 64GiB or 1.5TiB"),
        ((*SUBMIT, "--wall-time", "1w", "a.py"), "--wall-time", "write 30s, 10m, 2h or 1d"),
        ((*SUBMIT, "--grace", "5", "a.py"), "--grace", "write 30s, 10m, 2h or 1d"),
        ((*SUBMIT, "--dataset", "x", "a.py"), "--dataset", "NAME=/PATH[,manifest=/PATH]"),
        ((*SUBMIT, "--env", "x", "a.py"), "--env", "'x' is not KEY=VALUE"),
        ((*SUBMIT, "--image", "i", "--mount", "x", "a.py"), "--mount", "'x' is not /SOURCE[:/TARGET][:rw]"),
        ((*SUBMIT, "--user", "1:1", "a.py"), "--user", "give --image too"),
        (("node", "label", "h1", "site"), "LABELS", "'site' is not NAME=VALUE, such as site=ams"),
        (("node", "label", "h1", "site=ams"), "--reason", "say why"),
        (("burnin", "run", "GPU-1", "--reason", "fan", "--timeout", "x"), "--timeout", "write 30s, 10m, 2h or 1d"),
        (("node", "drain", "h1", "--reason", "fan", "--timeout", "x"), "--timeout", "write 30s, 10m, 2h or 1d"),
    ],
)
def test_a_value_that_cannot_be_read_is_reported_by_its_option(
    words: tuple[str, ...],
    option: str,
    accepted: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["muster", *words])
    assert app.run() == Exit.USAGE
    said = capsys.readouterr().err
    assert f"Invalid value for '{option}': " in said
    assert accepted in said
