"""The fake NVML library, built once per pytest process."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.fake_nvml.probed_host import Hosts, Libraries, build
from tests.warm_python import WarmPython


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("NO C COMPILER HERE: THE NVML PROBE STAYS UNTESTED; install gcc")
    folders = {name: tmp_path_factory.mktemp(name) for name in ("today", "older")}
    for name, folder in folders.items():
        options = ["-DWITHOUT_NEW"] if name == "older" else []
        build(compiler, folder / "libnvidia-ml.so.1", options)
    return Libraries(**folders)


@pytest.fixture
def hosts(tmp_path: Path, libraries: Libraries, warm_muster: WarmPython) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path, libraries, warm_muster.path)
    yield hosts
    hosts.close()
