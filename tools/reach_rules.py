"""Dependencies that imports do not show: tests that start a folder's processes or read its files.

A rule adds the tests of ``tests`` to what a change in one of ``sources`` reaches, ``away`` steps off: the larger, the
later they run. Both are patterns of paths from the root of the checkout (`fnmatch`: ``*`` crosses folders). A test
holds that each pattern matches something.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``because`` is shown to the developer."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    away: int
    because: str


RULES: Final = (
    Rule(("migrations/*",), ("tests/db/*",), 2, "the database is made by the migrations"),
    Rule(("console/templates/*", "console/static/*"), ("tests/console/*",), 2, "pages are rendered from templates"),
    Rule(("api/*",), ("tests/authorisation/*", "tests/client/test_contract.py"), 4, "they ask every route"),
    Rule(("api/*",), ("tests/api/*",), 6, "the application includes every route"),
    Rule(("console/*",), ("tests/console/*",), 4, "the application includes every page"),
    Rule(("console/*",), ("tests/browser/*",), 5, "the browser reads the console's pages"),
    Rule(("docs/*", "README.md", "CONTRIBUTING.md"), ("tests/docs/test_blocks.py",), 2, "documents are read by tests"),
    Rule(("CONTRIBUTING.md",), ("tests/docs/test_fault_tables.py",), 1, "its tables name tests"),
    Rule(("docs/*", "README.md", "muster/cli/*"), ("tests/docs/test_pages.py",), 6, "pages are typed on a stack"),
    Rule(
        ("docs/reference/policy.md", "policy/*"),
        ("tests/tools/test_policy_reference.py",),
        1,
        "it is generated",
    ),
    Rule(("docs/reference/xid.md",), ("tests/tools/test_xid_reference.py",), 1, "it is generated"),
    Rule(("docs/reference/detectors.md",), ("tests/tools/test_detector_reference.py",), 1, "it is generated"),
    Rule(("docs/reference/figures.md",), ("tests/tools/test_figure_reference.py",), 1, "it is generated"),
    Rule(("docs/reference/job.schema.json",), ("tests/tools/test_job_schema.py",), 1, "it is generated"),
    Rule(
        ("docs/openapi.json", "CHANGELOG.md"), ("tests/tools/test_openapi_changes.py",), 1, "the document is compared"
    ),
    Rule(("deploy/*", "docker-compose.yml", ".dockerignore"), ("tests/deploy/*",), 1, "images and units are read"),
    Rule(("pyproject.toml",), ("tests/setup/*", "tests/deploy/test_dockerfiles.py"), 2, "packages are named there"),
    Rule(("constraints.txt", "console/package*.json"), ("tests/setup/*",), 1, "set-up reads the locks"),
    Rule(
        ("muster/cli/*",),
        ("tests/cli/framework/test_tree.py", "tests/cli/test_commands.py"),
        2,
        "they start the command",
    ),
    Rule(("muster/cli/*",), ("tests/cli/*",), 4, "they start the command"),
    Rule(("muster/cli/*", "muster/client/*"), ("tests/stack/test_command_walk.py",), 6, "it walks every command"),
    Rule(("local/*",), ("tests/stack/test_up.py", "tests/local/*"), 4, "they start the local stack"),
    Rule(("workers/host/*",), ("tests/workers/host/*",), 5, "they start the host's processes"),
    Rule(("workers/*", "agents/*"), ("tests/stack/*",), 6, "they start the whole stack"),
    Rule(("agents/*", "api/*"), ("tests/agents/test_offline_hour.py",), 6, "it starts the API and an agent"),
    Rule(("muster/train/*",), ("tests/train/*",), 5, "they start training processes"),
    Rule(("muster/train/*", "examples/*.py"), ("tests/stack/test_programs.py",), 6, "it trains on a stack"),
    Rule(("examples/*.py",), ("tests/train/test_reference_programs.py",), 2, "it starts the programs"),
    Rule(("examples/scenarios/*",), ("tests/simulator/*",), 3, "scenarios are played"),
    Rule(("benchmarks/*",), ("tests/benchmarks/*",), 2, "their results are read"),
)
CHANGES_EVERYTHING: Final = ("pyproject.toml", "constraints.txt", "tests/conftest.py")
"""Files that may change any test: `make quick` reports that and runs the near tests."""
