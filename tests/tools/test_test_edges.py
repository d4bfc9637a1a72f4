"""What pytest and an application add to imports: a test needs what its fixtures name, and the routes that it names."""

from pathlib import Path

import pytest

from tools.fixture_users import add_fixtures
from tools.import_graph import ImportGraph, read_graph
from tools.route_users import add_routes

FILES = {
    "app/main.py": "from fastapi import APIRouter\nfrom app import core, jobs, quotas\nroot = APIRouter()\n",
    "app/core.py": "",
    "app/jobs.py": "import app.queue\nrouter = APIRouter()\n@router.get('/jobs/{job}/logs')\ndef logs(): ...\n",
    "app/queue.py": "",
    "app/quotas.py": "router = APIRouter(prefix='/quotas/{tier}')\n@router.put('')\ndef put(): ...\n",
    "lib/burial.py": "",
    "lib/case.py": "",
    "lib/server.py": "",
    "tests/conftest.py": (
        "import pytest\nfrom lib.burial import bury\nfrom lib import case\nfrom lib.server import Server\n"
        "@pytest.fixture(autouse=True)\ndef _buried():\n    bury()\n"
        "@pytest.fixture\ndef server():\n    return Server()\n"
        "class Case:\n    kept = case.Kept\n"
    ),
    "tests/part/conftest.py": (
        "import pytest\nfrom app.main import root\n@pytest.fixture\ndef api(server):\n    return root, server\n"
    ),
    "tests/part/test_plain.py": "def test_it(): ...\n",
    "tests/part/test_api.py": "def test_it(api):\n    api.get(f'/v1/jobs/{1}/logs')\n",
    "tests/part/test_named.py": "from tests.conftest import Case\n",
    "tests/part/test_asks.py": "from tests.part import asking\ndef test_it(api): ...\n",
    "tests/part/asking.py": "PATH = '/v1/quotas/spot'\n",
}


@pytest.fixture
def graph(tmp_path: Path) -> ImportGraph:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return add_routes(tmp_path, add_fixtures(tmp_path, read_graph(tmp_path)))


def sources_of(graph: ImportGraph, test: str) -> set[str]:
    return {module for module in graph.imports_of([f"tests.part.{test}"]) if not module.startswith("tests.")}


def test_a_test_needs_what_acts_by_itself_and_nothing_of_fixtures_that_it_does_not_use(graph: ImportGraph) -> None:
    assert sources_of(graph, "test_plain") == {"lib.burial"}


def test_a_fixture_brings_what_it_names_and_the_fixtures_that_it_requests(graph: ImportGraph) -> None:
    assert {"app.main", "app.core", "lib.server", "lib.burial"} <= sources_of(graph, "test_api")


def test_a_name_that_is_imported_from_a_conftest_brings_what_it_names(graph: ImportGraph) -> None:
    assert sources_of(graph, "test_named") == {"lib.burial", "lib.case"}


def test_a_test_reaches_the_routes_that_it_names_and_not_all_of_the_application(graph: ImportGraph) -> None:
    assert {"app.jobs", "app.queue"} <= sources_of(graph, "test_api")
    assert "app.quotas" not in sources_of(graph, "test_api")


def test_a_route_may_be_named_in_what_the_test_imports_of_the_tests(graph: ImportGraph) -> None:
    assert "app.quotas" in sources_of(graph, "test_asks")
    assert "app.jobs" not in sources_of(graph, "test_asks")


def test_a_change_of_a_conftest_reaches_its_users_alone(graph: ImportGraph) -> None:
    assert "tests.part.test_api" in graph.importers_of(["tests.part.conftest"])
    assert "tests.part.test_plain" in graph.importers_of(["tests.conftest"])
