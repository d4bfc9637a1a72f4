"""The graph of imports: when each import runs, what re-exports lead to, closures both ways, circles."""

from pathlib import Path

import pytest

from tools.import_graph import ImportGraph, graph_of, read_graph
from tools.import_statements import Kind, read_source, read_sources
from tools.reach_share import count_tests, empty_modules, hubs, reach_share


def tree(**files: str) -> ImportGraph:
    return graph_of({path: read_source(text) for path, text in files.items()})


def kinds_of(text: str) -> dict[str, Kind]:
    return {f"{one.module}.{one.name or ''}".rstrip("."): one.kind for one in read_source(text).statements}


def test_imports_are_distinguished_by_when_they_run() -> None:
    text = """
from typing import TYPE_CHECKING
import a.eager
try:
    from b import tried
except ImportError:
    pass
if TYPE_CHECKING:
    from c import typed
else:
    import c.other
def later():
    from d import late
    if TYPE_CHECKING:
        import d.typed
class Held:
    import e.held
"""
    assert kinds_of(text) == {
        "typing.TYPE_CHECKING": Kind.EAGER,
        "a.eager": Kind.EAGER,
        "b.tried": Kind.EAGER,
        "c.typed": Kind.TYPING,
        "c.other": Kind.EAGER,
        "d.late": Kind.LAZY,
        "d.typed": Kind.TYPING,
        "e.held": Kind.EAGER,
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("room = 'pkg.part:app'", {"pkg.part"}),
        ("word = [python, '-m', 'pkg', 'up']", {"pkg.__main__"}),
        ("word = 'python -m pkg.part --all'", {"pkg.part"}),
        ("code = 'from pkg.part import name; print(name)'", {"pkg.part"}),
        ("'''Documentation about pkg.part'''", set()),
        ("words = 'a sentence about pkg.part'", set()),
    ],
)
def test_modules_are_read_from_the_strings_that_start_them(text: str, named: set[str]) -> None:
    assert set(kinds_of(text)) == named
    assert set(kinds_of(text).values()) <= {Kind.NAMED}


TREE = {
    "pkg/__init__.py": '"""Re-exports."""\nfrom pkg.one import One\nfrom .two import Two as Second\n__all__ = []\n',
    "pkg/one.py": "One = 1\n",
    "pkg/two.py": "from . import three\nTwo = three\n",
    "pkg/three.py": "",
    "busy/__init__.py": "from pkg.one import One\nprint(One)\n",
    "busy/part.py": "",
    "tests/test_one.py": "from pkg import One\n",
    "tests/test_second.py": "from pkg import Second\n",
    "tests/test_part.py": "import busy.part\n",
    "tests/test_main.py": "import missing.module\nimport json\n",
}


def test_a_package_that_only_re_exports_leads_to_the_module_that_defines_the_name() -> None:
    found = tree(**TREE)
    assert set(found.importers_of(["pkg.one"])) == {"pkg", "pkg.one", "busy", "tests.test_one", "tests.test_part"}
    assert set(found.importers_of(["pkg.three"])) == {"pkg", "pkg.two", "pkg.three", "tests.test_second"}


def test_a_change_of_the_package_itself_reaches_all_that_import_through_it() -> None:
    reached = tree(**TREE).importers_of(["pkg"])
    assert {"tests.test_one", "tests.test_second", "busy"} <= set(reached)


def test_a_package_that_does_more_is_led_through() -> None:
    assert tree(**TREE).imports_of(["tests.test_part"]) == {
        "tests.test_part": 0,
        "busy": 1,
        "busy.part": 1,
        "pkg": 2,
        "pkg.one": 2,
    }


def test_distances_are_the_fewest_imports() -> None:
    assert tree(**TREE).importers_of(["pkg.three"])["tests.test_second"] == 2


def test_circles_are_found_and_kinds_of_imports_make_others() -> None:
    found = tree(
        **{
            "p/a.py": "from p import b",
            "p/b.py": "from p import c",
            "p/c.py": "from p.a import name\ndef late():\n    from p import d",
            "p/d.py": "import p.c",
            "p/__init__.py": "",
        }
    )
    assert found.circles() == [["p.a", "p.b", "p.c"]]
    assert found.circles([Kind.EAGER, Kind.LAZY]) == [["p.a", "p.b", "p.c", "p.d"]]


def test_what_is_read_is_cached_until_the_file_changes(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/a.py").write_text("import p.b\n")
    (tmp_path / "p/b.py").write_text("")
    assert read_graph(tmp_path).imports_of(["p.a"]) == {"p.a": 0, "p.b": 1}
    assert read_sources(tmp_path) == read_sources(tmp_path, use_cache=False)
    (tmp_path / "p/a.py").write_text("import json  # longer than before\n")
    assert read_graph(tmp_path).imports_of(["p.a"]) == {"p.a": 0}


def test_the_share_of_tests_that_a_change_reaches_and_the_hubs_that_make_it(tmp_path: Path) -> None:
    files = {
        "p/hub.py": "import p.far\nimport p.near\n",
        "p/far.py": "",
        "p/near.py": "",
        "tests/test_a.py": "import p.hub\ndef test_1(): ...\ndef test_2(): ...\n",
        "tests/test_b.py": "import p.near\ndef test_3(): ...\ndef test_4(): ...\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = tree(**files)
    tests = count_tests(tmp_path, found.modules)
    assert tests == {"tests/test_a.py": 2, "tests/test_b.py": 2}
    share = reach_share(found, tests)
    assert share.modules == {"p.hub": 0.5, "p.far": 0.5, "p.near": 1.0}
    assert share.median == 0.5
    assert hubs(found, tests, ["p.hub"]) == {"p.hub": 0.5}


def test_a_module_without_statements_is_empty(tmp_path: Path) -> None:
    files = {"p/__init__.py": '"""A package."""\n', "p/a.py": '"""A module."""\nX = 1\n', "p/b.py": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert empty_modules(tmp_path, tree(**files)) == {"p", "p.b"}
