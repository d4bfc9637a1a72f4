"""Every command, environment and health check of the compose file as real processes, until a job has run through."""

import hashlib
import json
import ssl
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import redis

from muster.settings import load_settings
from muster.store.key_file import read_keys
from muster.store.objects import ObjectStore
from tests.deploy.processes import PATIENCE_S, Machine, running_services
from tests.swept import swept_folder
from tests.waiting import wait_until
from tests.warm_python import WarmPython

SECRET_VOLUMES = ("control", "database-secret", "broker-secret", "store-secret", "host-secrets", "keys")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("compose")]


@pytest.fixture(scope="module")
def machine(warm_muster: WarmPython, warm_python: WarmPython) -> Iterator[Machine]:
    variables = {"MUSTER_API_NAME": "muster.example", "MUSTER_STORE_NAME": "localhost"}
    with swept_folder() as folder, running_services(folder, variables, warm_muster, warm_python) as running:
        yield running


def typed(machine: Machine, *words: str, code: int = 0) -> str:
    """`docker compose run --rm cli …`"""
    answer = machine.run(machine.services["cli"], *words)
    assert answer.returncode == code, answer.stdout + answer.stderr
    return answer.stdout


def followed(machine: Machine, *words: str) -> str:
    """Return what a person reads: the program's lines, and the end of the job with them."""
    answer = machine.run(machine.services["cli"], *words)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout + answer.stderr


def test_the_hosts_enrol_and_their_gpus_are_proved(machine: Machine) -> None:
    def num_healthy() -> int:
        return sum(gpu["standing"] == "HEALTHY" for gpu in json.loads(typed(machine, "gpu", "list", "--json")))

    wait_until(lambda: num_healthy() == 16, timeout_s=PATIENCE_S, pause_s=0.5)
    assert {node["name"] for node in json.loads(typed(machine, "node", "list", "--json"))} == {"h100-1", "h100-2"}


def test_a_job_of_a_tenant_runs_through(machine: Machine) -> None:
    wait_until(
        lambda: any(gpu["standing"] == "HEALTHY" for gpu in json.loads(typed(machine, "gpu", "list", "--json"))),
        timeout_s=PATIENCE_S,
        pause_s=0.5,
    )
    said = followed(machine, "job", "submit", "--follow", "--gpus", "2", "--", "examples/hello_ranks.py")
    assert "[1] rank 1 of 2: the sum over all ranks is 3, expected 3" in said
    assert "SUCCEEDED" in said


def test_a_fault_can_be_injected_from_the_command(machine: Machine) -> None:
    gpu = json.loads(typed(machine, "gpu", "list", "--json"))[0]["uuid"]
    typed(machine, "sim", "inject", "gpu", gpu, "heat", "70")
    assert gpu in (machine.folder / "volumes/faults/faults.json").read_text()


def test_the_certificate_bears_the_name_that_was_given(machine: Machine) -> None:
    control = machine.folder / "volumes" / "control"
    trusted = ssl.create_default_context(cafile=control / "tls.pem")
    with httpx.Client(verify=trusted) as client:
        answer = client.get(f"https://127.0.0.1:{machine.ports['8420']}/readyz")
    assert answer.status_code == 200
    assert b"muster.example" in _pem_names(control / "tls.pem")


def _pem_names(path: Path) -> bytes:
    from cryptography import x509  # noqa: PLC0415

    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return " ".join(names.get_values_for_type(x509.DNSName)).encode()


def test_the_content_store_takes_what_the_control_plane_signs(machine: Machine) -> None:
    """Over TLS, by the settings that the API has: it calls the store by the inner name, and signs the public one."""
    volumes = machine.folder / "volumes"
    settings = load_settings({"MUSTER_SETTINGS": str(volumes / "control/settings.yaml")})
    store = ObjectStore.from_settings(settings)
    assert store is not None
    store.check()
    port = machine.ports["8421"]
    assert (settings.store_url, settings.store_public_url) == (f"https://127.0.0.1:{port}", f"https://localhost:{port}")
    content, now = b"a chunk" * 100_000, datetime.now(UTC)
    key = "tenants/any/chunk"
    put = store.upload(key, len(content), hashlib.sha256(content).hexdigest(), now)
    get = store.download(key, now)
    trusted = ssl.create_default_context(cafile=volumes / "host-secrets/ca.pem")
    with httpx.Client(verify=trusted) as client:
        assert client.put(put.url, headers=dict(put.headers), content=content).status_code == 200
        assert client.get(get.url, headers={"range": "bytes=7-"}).content == content[7:]
    store.delete([key])
    assert store.head(key) is None


def test_a_person_can_sign_in_to_the_console(machine: Machine) -> None:
    password = (machine.folder / "volumes/keys/console.password").read_text().strip()
    assert len(password) >= 20
    names = {person["name"] for person in json.loads(typed(machine, "person", "list", "--json"))}
    assert names == {"operator"}


def test_a_wakeup_needs_no_more_than_the_access_rules_give(machine: Machine) -> None:
    """Hosts were woken by now; what the broker refused stands in its log of refusals."""
    words = (machine.folder / "volumes/control/broker.password").read_text().strip()
    port = int(machine.ports["6379"])
    for name in ("worker-control", "h100-1", "h100-2"):
        log = (machine.folder / f"{name}.log").read_text()
        assert "NOPERM" not in log
        assert "wakeup_listener_ended" not in log
    with redis.Redis(port=port, username="muster-control", password=words) as client:
        assert client.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("another:key")
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.flushall()
    with redis.Redis(port=port) as stranger, pytest.raises(redis.RedisError):
        stranger.get("muster:host")


def test_every_secret_is_for_its_owner_alone(machine: Machine) -> None:
    volumes = machine.folder / "volumes"
    for volume in SECRET_VOLUMES:
        files = [path for path in (volumes / volume).iterdir() if path.is_file()]
        assert files, volume
        for path in files:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_no_secret_is_in_a_log_or_an_environment(machine: Machine) -> None:
    volumes = machine.folder / "volumes"
    secrets = [(volumes / name).read_text().strip() for name in ("control/secret.key", "database-secret/password")]
    secrets += [(volumes / name).read_text().strip() for name in ("keys/operator.key", "control/broker.password")]
    secrets += [key.secret for key in read_keys(volumes / "store-secret/store.key")]
    for name, process in machine.processes.items():
        log = (machine.folder / f"{name}.log").read_text(errors="replace")
        environment = Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
        for secret in secrets:
            assert secret not in log, name
            assert secret not in environment, name


def test_what_is_killed_comes_back_on_the_same_volumes(machine: Machine) -> None:
    for name in ("api", "store", "scheduler", "worker-control", "h100-1", "h100-1-agent"):
        machine.restart(name)
    said = followed(machine, "job", "submit", "--follow", "--", "examples/hello_ranks.py")
    assert "SUCCEEDED" in said


def test_a_second_up_changes_nothing(machine: Machine) -> None:
    before = {path: path.read_bytes() for path in _secret_files(machine)}
    for name in ("prepare", "migrate", "bootstrap", "enrol"):
        machine.start(machine.services[name])
    assert {path: path.read_bytes() for path in _secret_files(machine)} == before


def test_a_key_whose_file_was_never_written_is_made_again_though_its_name_is_taken(machine: Machine) -> None:
    file = machine.folder / "volumes" / "keys" / "tenant.key"
    before = file.read_text()
    file.unlink()
    machine.start(machine.services["enrol"])
    assert file.read_text().startswith("mst_")
    assert file.read_text() != before
    named = [
        key["name"] for key in json.loads(typed(machine, "key", "list", "--json")) if key["role"] == "tenant_admin"
    ]
    assert len(named) == len(set(named)) == 2
    assert "demo" in named


def _secret_files(machine: Machine) -> list[Path]:
    return [path for name in SECRET_VOLUMES for path in (machine.folder / "volumes" / name).iterdir()]
