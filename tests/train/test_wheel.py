"""The runtime as tenants get it: its own small wheel, in an environment with torch and no other code of the project."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

from tools import build_train_wheel
from tools.wheels import base_wheel

from .marks import TRAINS

pytestmark = TRAINS
PROOF = """
import importlib.util, runpy, sys
del sys.argv[0]
from muster import train
assert train.start and train.Run
foreign = {"msgspec", "pydantic", "structlog", "httpx", "psutil", "sqlalchemy", "muster.domain", "muster.wire"}
assert not foreign & set(sys.modules), foreign & set(sys.modules)
assert importlib.util.find_spec("muster.domain") is None
print(train.__file__, flush=True)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_same_sources_give_the_same_wheel(tmp_path: Path) -> None:
    first, second = (build_train_wheel.build(tmp_path / name).read_bytes() for name in ("a", "b"))
    assert first == second


def test_what_only_some_jobs_need_is_an_extra(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_train_wheel.build(tmp_path)) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
        lines = wheel.read(name).decode().splitlines()
    assert {"Provides-Extra: s3", "Requires-Dist: boto3>=1.40,<2; extra == 's3'"} < set(lines)
    assert [line for line in lines if line.startswith("Requires-Dist") and "extra" not in line] == [
        "Requires-Dist: muster-base>=0.1",
        "Requires-Dist: torch>=2.13",
    ]


def test_it_installs_without_a_network_and_runs_next_to_torch_alone(tmp_path: Path) -> None:
    wheels = [base_wheel().write(tmp_path / "dist"), build_train_wheel.build(tmp_path / "dist")]
    place = tmp_path / "venv"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    install = [
        "--isolated",
        "--python",
        str(python),
        "install",
        "--no-index",
        "--no-deps",
        "--quiet",
        *map(str, wheels),
    ]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, timeout=180)
    # Torch is too large to install again: the tenant's environment sees ours for that, without our editable link.
    libraries = next(place.glob("lib/python*/site-packages"))
    (libraries / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin"}
    program = [str(Path(__file__).with_name("tiny_program.py")), "--steps", "2"]
    trained = subprocess.run(
        [str(python), "-c", PROOF, *program],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=180,
    )
    place_of_train, _, steps = trained.stdout.partition("\n")
    assert Path(place_of_train).is_relative_to(libraries)
    assert steps.startswith("step 1 ")
