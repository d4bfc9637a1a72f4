"""The API over TLS, as a process, with a certificate that the client is configured to trust."""

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys
from local.children import Child, child_environment
from muster.client.rest import RestClient
from muster.client.transport import InsecureAddressError, UnreachableError
from muster.db.engine import make_engine
from muster.domain.principals import Principal, Role
from muster.ports import free_port
from muster.settings import SettingsError, load_settings, make_secret_key_file
from tests.certificates import write_certificate
from tests.waiting import wait_until
from tests.warm_python import WarmPython


@dataclass(frozen=True)
class SecureApi:
    url: str
    token: str
    certificate: Path


@pytest.fixture
def secure_api(database_url: str, tmp_path: Path, warm_stack: WarmPython) -> Iterator[SecureApi]:
    engine = make_engine(database_url)
    operator = Principal(name="operator:test", role=Role.OPERATOR)
    with UnitOfWorkFactory(engine).begin(operator, keys.CREATE) as unit:
        token = keys.create(unit, name="test", role=Role.OPERATOR).token.text
    engine.dispose()
    certificate, key = write_certificate(tmp_path)
    make_secret_key_file(tmp_path / "secret.key")
    port = free_port()
    variables = child_environment(
        database_url=database_url,
        secret_key_file=tmp_path / "secret.key",
        api_port=port,
        api_tls_certificate=certificate,
        api_tls_key=key,
    )
    child = Child("api", ["api"], variables, tmp_path / "api.log", str(warm_stack.daemon))
    child.start()
    try:
        wait_until(lambda: _is_listening(port))
        yield SecureApi(f"https://127.0.0.1:{port}", token, certificate)
    finally:
        child.stop()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_client_that_trusts_the_certificate_is_answered(secure_api: SecureApi) -> None:
    with RestClient(secure_api.url, secure_api.token, ca_file=secure_api.certificate) as client:
        assert client.whoami()["role"] == "operator"


def test_a_client_that_does_not_trust_it_sends_no_key(secure_api: SecureApi) -> None:
    with RestClient(secure_api.url, secure_api.token) as client, pytest.raises(UnreachableError, match="certificate"):
        client.whoami()


def test_the_connection_is_of_a_modern_version(secure_api: SecureApi) -> None:
    context = ssl.create_default_context(cafile=str(secure_api.certificate))
    port = int(secure_api.url.rsplit(":", 1)[1])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as secured,
    ):
        assert secured.version() in {"TLSv1.2", "TLSv1.3"}


def test_clear_text_beyond_loopback_is_refused_by_client_and_settings() -> None:
    with pytest.raises(InsecureAddressError):
        RestClient("http://192.0.2.1:8420", "mst_x")
    with pytest.raises(SettingsError, match="https"):
        load_settings({"MUSTER_API_URL": "http://192.0.2.1:8420"})
    with pytest.raises(SettingsError, match="api_tls_certificate"):
        load_settings({"MUSTER_API_HOST": "0.0.0.0"})  # noqa: S104  # the very thing that is refused
