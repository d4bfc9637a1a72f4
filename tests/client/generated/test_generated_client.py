"""A client that a tenant generates from our document submits a job to the real stack and follows it to its end."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.generated.environment import HERE, generators_python
from tests.stack.harness import Stack, own_folder, running_stack
from tests.warm_python import WarmPython
from tools.openapi_document import DOCUMENT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PACKAGE = "muster_generated"


@pytest.fixture(scope="module")
def python() -> Path:
    return generators_python()


@pytest.fixture(scope="module")
def client_folder(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the generated package. Nothing in the document is beyond the generator."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "config.yaml").write_text("post_hooks: []\n")
    asked = ["generate", "--path", str(DOCUMENT), "--meta", "none", "--config", str(folder / "config.yaml")]
    done = subprocess.run(
        [str(python), "-m", "openapi_python_client", *asked, "--fail-on-warning", "--output-path", folder / PACKAGE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def stack(client_folder: Path, server_folder: Path, warm_stack: WarmPython, warm_python: WarmPython) -> Iterator[Stack]:
    """Asked for after the client, without which no server need start."""
    with running_stack(own_folder(server_folder, "generated"), warm_stack, warm_python) as stack:
        yield stack


def test_it_submits_a_job_and_follows_it_to_its_end(python: Path, client_folder: Path, stack: Stack) -> None:
    key = stack.identities.tenant_key_file.read_text().strip()
    done = subprocess.run(
        [str(python), str(HERE / "follow_job.py"), f"http://127.0.0.1:{stack.port}"],
        input=json.dumps([sys.executable, "-c", "print('trained')"]),
        env={"MUSTER_API_KEY": key, "PYTHONPATH": str(client_folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    learned = json.loads(done.stdout)
    assert (learned["state"], learned["cause"], learned["printed"]) == ("SUCCEEDED", "succeeded", "trained\n")
    assert (learned["events"][0], learned["events"][-1]) == ("job.queued", "job.succeeded")
    assert learned["listed"] == [learned["id"]], "and it is one, asked for twice under one key"
    assert learned["refused"] == [404, "not_found"]
