"""Build of the wheel ``muster-client``: the command and the typed clients, without anything of a server.

    python -m tools.build_client_wheel dist

Its files follow from the imports: all that the commands reach which need no other part of Muster
(`muster.cli.framework.branches`), and the clients with their documents, however far, within ``muster``. A function may
import more, such as ``muster audit verify`` the database: those files stay out, and the command reports it.

``--all`` builds all wheels that a control plane serves, into the folder from which it serves them.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from muster.cli.framework.branches import BRANCHES
from muster.cli.framework.installed import Part
from tools.build_train_wheel import train_wheel
from tools.import_graph import ImportGraph, read_graph
from tools.import_statements import Kind
from tools.wheels import BASE_FILES, ROOT, Wheel, base_wheel, project_requirements, project_version

SERVED: Final = ROOT / "console" / "wheels"
ROOTS: Final = ("muster.__main__", "muster.cli.framework.app")
WHOLE_PACKAGES: Final = ("muster.client", "muster.documents")
LEFT_OUT: Final = ("muster.bench", "muster.client.host", "muster.db", "muster.train", "muster.wire")
"""The parts of servers and hosts, and the runtime, which has a wheel of its own."""
NEEDED: Final = frozenset(
    {"httpx", "msgspec", "packaging", "pathspec", "pydantic", "pyyaml", "rich", "typer", "typing-extensions"}
)
"""The requirements of Muster that the client has too. For work folders ``pathspec`` reads the ignore files, and
``msgspec`` writes the manifest. ``packaging`` reads the names of wheels in lock files.
"""


def client_wheel() -> Wheel:
    requirements = [each for each in project_requirements() if _name_of(each) in NEEDED]
    return Wheel(
        "muster-client",
        "The command muster, and typed clients of its API, for a control plane elsewhere.",
        sorted(client_files()),
        (f"muster-base=={project_version()}", *requirements),
        commands={"muster": "muster.cli:main"},
    )


def client_files() -> set[str]:
    """Return the paths of all files of the client."""
    graph = read_graph()
    modules = reached(graph)
    packages = {".".join(module.split(".")[:count]) for module in modules for count in range(1, module.count(".") + 1)}
    paths = {graph.paths[module] for module in modules | packages if module in graph.paths}
    return paths - set(BASE_FILES)


def reached(graph: ImportGraph) -> set[str]:
    """Return the modules that the client's commands and packages import, however far, without the ones left out."""
    edges = graph.edges((Kind.EAGER, Kind.LAZY))
    waiting = list(_starts(graph))
    found: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module not in found and is_client(module):
            found.add(module)
            waiting += edges[module]
    return found


def is_client(module: str) -> bool:
    """Return whether a module may belong to the client."""
    return module.split(".", maxsplit=1)[0] == "muster" and not any(
        module == each or module.startswith(f"{each}.") for each in LEFT_OUT
    )


def _starts(graph: ImportGraph) -> Iterator[str]:
    yield from ROOTS
    for branch in BRANCHES.values():
        if branch.needs is not Part.WHOLE:
            yield branch.room.partition(":")[0]
    yield from (module for module in graph.paths if module.startswith(tuple(f"{each}." for each in WHOLE_PACKAGES)))


def _name_of(requirement: str) -> str:
    return requirement.split(">", maxsplit=1)[0].split("=", maxsplit=1)[0].strip()


def build(folder: Path) -> Path:
    """Build the wheel and return its path."""
    return client_wheel().write(folder)


def build_served(folder: Path = SERVED) -> list[Path]:
    """Build all wheels that a control plane serves, and remove wheels of other versions."""
    built = [wheel.write(folder) for wheel in (base_wheel(), client_wheel(), train_wheel())]
    for path in folder.glob("*.whl"):
        if path not in built:
            path.unlink()
    return built


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the wheels muster-base and muster-client.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("folder", nargs="?", type=Path, default=Path("dist"), help="where they go (default: dist)")
    where.add_argument("--all", action="store_true", help="all wheels that a control plane serves, where it has them")
    given = parser.parse_args(words)
    built = build_served() if given.all else [base_wheel().write(given.folder), build(given.folder)]
    sys.stdout.write("".join(f"{path}\n" for path in built))
    return 0


if __name__ == "__main__":
    sys.exit(main())
