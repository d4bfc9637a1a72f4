"""Each kind of change, on a line of its own; and what is never changed."""

import textwrap

import pytest

from tools.mutants.sites import mutants_of


def changes(body: str, header: str = "def decide(a, b, c):") -> set[tuple[str, str, str]]:
    """Return (kind, line, what the line becomes) of each change of one function."""
    text = f"{header}\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
    return {(one.operator, one.line, one.becomes) for one in mutants_of("muster/it.py", text)}


@pytest.mark.parametrize(
    ("operator", "line", "becomes"),
    [
        ("comparison", "return a < b", "return a <= b"),
        ("comparison", "return a >= b", "return a > b"),
        ("comparison", "return a == b", "return a != b"),
        ("comparison", "return a < b <= c", "return a < b < c"),
        ("membership", "return a not in b", "return a in b"),
        ("membership", "return a is None", "return a is not None"),
        ("junction", "return a and b", "return a or b"),
        ("junction", "return (a or b)", "return (a and b)"),
        ("arithmetic", "return a + b", "return a - b"),
        ("arithmetic", "a -= b", "a += b"),
        ("constant", "return a(3)", "return a(4)"),
        ("constant", "return a(3)", "return a(2)"),
        ("flag", "return True", "return False"),
        ("extreme", "return min(a, b)", "return max(a, b)"),
        ("negation", "return not a", "return a"),
        ("negation", "return b if a else c", "return b if not a else c"),
        ("deletion", "a.note(b)", "pass"),
        ("deletion", "a.b = c", "pass"),
        ("deletion", "a += b", "pass"),
        ("comparison", 'return "Wärme" if a < b else c', 'return "Wärme" if a <= b else c'),
    ],
)
def test_a_line_is_changed(operator: str, line: str, becomes: str) -> None:
    assert (operator, line, becomes) in changes(line)


def test_a_guard_is_removed() -> None:
    assert ("guard", "if a.is_over:", "if False:") in changes("if a.is_over:\n    return b\nreturn c")


def test_a_branch_that_goes_on_is_no_guard() -> None:
    assert "guard" not in {kind for kind, *_ in changes("if a.is_over:\n    b()\nreturn c")}


def test_a_default_is_changed() -> None:
    header = "def decide(a, *, is_dry: bool = False):"
    assert ("default", header, "def decide(a, *, is_dry: bool = True):") in changes("return a", header)


@pytest.mark.parametrize(
    "body",
    [
        'raise ValueError("more than", 3, a < b)',
        '_log.warning("late", by=a - b)',
        "structlog.get_logger().info(a + 1)",
        'b: "dict[str, Literal[3]]"',
        'return f"{a + 1} of {b}"',
        "assert a < b",
        '"""Return 3 < 4."""',
        "return a.wait(3)",
        "return a(timeout_s=3)",
        "return zip(a, b, strict=True)",
        "return a.keys() - b",
        "return [*a] + b",
    ],
)
def test_what_is_no_decision_stays(body: str) -> None:
    assert changes(body) == set()


def test_repr_and_constructors_stay() -> None:
    assert changes("return a + b", "def __repr__(a, b):") == set()
    assert changes("a.b = c\na.open()", "def __init__(a, c):") == set()


def test_equal_lines_of_a_function_are_counted() -> None:
    text = "class Queue:\n    def take(self, a):\n        a.b()\n        a.b()\n"
    found = mutants_of("muster/it.py", text)
    assert [(one.function, one.nth) for one in found] == [("Queue.take", 0), ("Queue.take", 1)]
