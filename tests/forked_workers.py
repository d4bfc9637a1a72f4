"""Forked workers of pytest-xdist: one process imports the test modules, and each worker is a fork of it.

That process is ``tests/collecting_server.py``. The workers also share the servers behind ``warm_python``,
``warm_muster`` and ``warm_stack``, each of which takes seconds to import its modules. All of these processes end with
the process of the run, however it ends.
"""

import contextlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.swept import swept_folder
from tests.warm_python import MODULES, ROOT, WarmPython, WarmServer, socket_in

SHARED: Final = "shared_folder"
"""Key of what xdist hands to its workers: the folder of the shared servers."""
_COLLECTING: Final = ROOT / "tests" / "collecting_server.py"


class ForkedWorkers:
    """A pytest plugin of the process that starts the workers."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: list[Any]) -> None:
        """Start the servers, and let each worker of this machine be a fork."""
        servers = contextlib.ExitStack()
        config.add_cleanup(servers.close)
        self._folder = folder = servers.enter_context(swept_folder())
        for name in MODULES:
            servers.enter_context(WarmServer.of(name, folder / name))
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            _use_the_other_processors(folder)
        words = (json.dumps(sys.path), *_arguments(config))
        collecting = WarmServer(folder / "collecting", _COLLECTING, *words, environment=dict(os.environ))
        servers.enter_context(collecting)
        own = folder / "workers"
        own.mkdir()
        python = servers.enter_context(WarmPython(own, folder / "collecting")).daemon
        for spec in specs:
            if spec.popen and spec.python is None:
                spec.python = str(python)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[SHARED] = str(self._folder)


def shared_servers(config: pytest.Config) -> Path | None:
    """Return the folder of the servers that the workers share, each in a folder of its fixture's name.

    None: this process is no worker.
    """
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    return Path(worker[SHARED]) if SHARED in worker else None


def _use_the_other_processors(folder: Path) -> None:
    """Let the servers import while the tests are collected: a run of all tests needs each of them."""
    for name in MODULES:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wakes:
            wakes.connect(str(socket_in(folder / name)))


def _arguments(config: pytest.Config) -> list[str]:
    """Return what decides which modules a worker imports, and how.

    A plugin of the command line is imported, as in a worker, and then takes no part.
    """
    words = [f"--rootdir={config.rootpath}", *(f"--ignore={path}" for path in config.option.ignore or ())]
    if config.inipath is not None:
        words += ["-c", str(config.inipath)]
    for setting in config.option.override_ini or ():
        words += ["-o", setting]
    for plugin in config.option.plugins or ():
        words += ["-p", plugin] if plugin.startswith("no:") else ["-p", plugin, "-p", f"no:{plugin}"]
    return [*words, *dict.fromkeys(argument.partition("::")[0] for argument in config.args)]
