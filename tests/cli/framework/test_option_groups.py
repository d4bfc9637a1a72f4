"""Groups of options: Typer sees an option for each field, and the command receives the group."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from muster.cli.framework.option_groups import given_to, options_of
from muster.cli.framework.output import Done, changes


@dataclass(frozen=True)
class Limits:
    """Two options."""

    cpus: Annotated[float | None, typer.Option(help="Of each host.")] = None
    tags: Annotated[list[str] | None, typer.Option("--tag")] = None


def work(
    program: Annotated[str, typer.Argument()], limits: Limits, name: str = "job", *, dry_run: bool = False
) -> Done:
    return Done({"program": program, "limits": limits, "name": name, "dry_run": dry_run}, f"{program} {limits}")


def test_a_field_is_an_option_in_the_place_of_its_group_and_the_group_comes_back() -> None:
    assert [each.name for each in options_of(work)] == ["program", "name", "cpus", "tags", "dry_run"]
    given = {"program": "a", "cpus": 2.0, "tags": ["x"], "name": "n", "dry_run": True}
    assert given_to(work, given) == {"program": "a", "limits": Limits(2.0, ["x"]), "name": "n", "dry_run": True}


def test_a_command_reads_its_groups_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    changes(app, "work", example="work a")(work)
    app(["a", "--cpus", "1.5", "--tag", "x", "--tag", "y"], standalone_mode=False)
    assert "a Limits(cpus=1.5, tags=['x', 'y'])" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        app(["--help"], standalone_mode=True)
    assert "Of each host." in capsys.readouterr().out
