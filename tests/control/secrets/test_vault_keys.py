"""Keys of secrets in Vault's transit engine: wrapped, unwrapped and rewrapped there, and each fault in one sentence."""

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from control.core.unit_of_work import UnitOfWorkFactory
from control.secrets import vault_circuit
from control.secrets.envelopes import Envelope, Place, opened, rewrapped, seal
from control.secrets.joined_keys import JoinedKeys
from control.secrets.key_wrapping import WrappedKey
from control.secrets.settings_keys import keys_of_settings
from control.secrets.vault_calls import VaultCalls, VaultServer
from control.secrets.vault_circuit import MOST_AT_ONCE, PAUSE_S
from control.secrets.vault_keys import VaultKeys
from muster.db.models import SecretVersion
from muster.domain.errors import SecretKeyError
from muster.domain.ids import SecretId, TenantId
from muster.settings import SettingsError, load_settings
from tests.certificates import write_certificate
from tests.control.secrets.played_vault import KEY, PlayedVault, played_vault, refusal
from tests.control.secrets.secret_case import key_file, rewrap_once, rotate_secret, set_secret
from tests.fleet_factory import make_fleet
from tests.recorded_server import Answer
from tests.waiting import wait_until

PLACE = Place(TenantId("ten_a"), SecretId("sec_a"), "hf-token", 3)
PATH = f"transit/keys/{KEY}"
VALUE = b"a value of a tenant"
OPEN_TRANSACTIONS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
)


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[PlayedVault]:
    with played_vault(tmp_path) as vault:
        yield vault


def test_a_value_is_sealed_and_opened_and_vault_sees_neither_it_nor_another_place(vault: PlayedVault) -> None:
    keys = vault.keys()
    envelope = seal(keys, PLACE, VALUE)
    assert envelope.wrapped.key_id == f"vault:transit/{KEY}:v1" == keys.active_key_id()
    assert opened(keys, PLACE, envelope) == VALUE
    sent = [(each.method, each.path) for each in vault.server.requested]
    assert sent == [("POST", "/v1/transit/encrypt/muster"), ("GET", "/v1/transit/keys/muster"), (
        "POST", "/v1/transit/decrypt/muster",
    )]  # fmt: skip
    assert not [each for each in vault.server.requested if VALUE in each.body]
    elsewhere = replace(PLACE, name="wandb")
    with pytest.raises(SecretKeyError, match="is of another secret: the row was changed"):
        opened(keys, elsewhere, envelope)


def test_after_a_rotation_vault_rewraps_what_it_wrapped_before_and_no_data_key_is_sent(vault: PlayedVault) -> None:
    keys = vault.keys()
    before = seal(keys, PLACE, VALUE)
    vault.rotate()
    assert (keys.active_key_id(), len(keys.key_ids())) == (f"vault:transit/{KEY}:v2", 2)
    after = replace(before, wrapped=rewrapped(keys, PLACE, before.wrapped))
    last = vault.server.requested[-1]
    assert (last.path, list(json.loads(last.body))) == ("/v1/transit/rewrap/muster", ["ciphertext"])
    assert after.wrapped.key_id == f"vault:transit/{KEY}:v2"
    vault.first = 2
    assert opened(keys, PLACE, after) == VALUE, "the place that it is bound to has stayed"
    assert keys.key_ids() == {f"vault:transit/{KEY}:v2"}
    with pytest.raises(SecretKeyError, match=r"refuses the key transit/muster \(400\): invalid ciphertext"):
        opened(keys, PLACE, before)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusal(503, "Vault is sealed"), r"cannot answer now \(503\): Vault is sealed"),
        (refusal(403, "1 error occurred:\n\t* permission denied\n\n"), "refuses the token of MUSTER_VAULT_TOKEN_FILE"),
        (refusal(429), r"cannot answer now \(429\): no reason is given"),
        (refusal(500, "\x1b[31mstorage" + "!" * 900), r"cannot answer now \(500\): \[31mstorage!{189}$"),
        (refusal(400, "encryption key not found"), "refuses the key transit/muster .400.: encryption key not found"),
        (Answer(307, headers={"Location": "http://127.0.0.1:9/"}), "names another address"),
        (Answer(200, {"data": {"plaintext": "no base64!"}}), "what is no data key"),
        (Answer(200, {"data": {"plaintext": "c2hvcnQ="}}), "the row was changed"),
        (Answer(200, {"data": {}}), "the row was changed"),
        (Answer(200, {"hello": "world"}), "is no Vault"),
        (Answer(200, raw=b"<html>"), "is no Vault"),
        (Answer(200, raw=b" " * ((1 << 20) + 1)), "more than 1,048,576 bytes"),
    ],
)
def test_each_refusal_of_vault_is_a_sentence(vault: PlayedVault, answer: Answer, words: str) -> None:
    keys = vault.keys()
    wrapped = keys.wrap(b"k" * 32, PLACE.about)
    vault.refusal = answer
    with pytest.raises(SecretKeyError, match=words) as fault:
        keys.unwrap(wrapped, PLACE.about)
    reported = f"{fault.value} {fault.value.detail}"
    assert not [each for each in (vault.server.url, "hvs.", str(vault.token_file)) if each in reported]


@pytest.mark.parametrize("document", [{"ciphertext": "vault:v0:abc"}, {"ciphertext": "abc"}, {}])
def test_what_is_no_wrapped_key_is_not_stored(vault: PlayedVault, document: dict[str, str]) -> None:
    vault.refusal = Answer(200, {"data": document})
    with pytest.raises(SecretKeyError, match="what is no wrapped key"):
        seal(vault.keys(), PLACE, VALUE)


def test_a_key_that_is_gone_or_does_not_fit_is_named(vault: PlayedVault) -> None:
    keys = vault.keys()
    wrapped = keys.wrap(b"k" * 32, PLACE.about)
    vault.versions = None
    with pytest.raises(SecretKeyError, match="Vault has no key transit/muster"):
        keys.active_key_id()
    with pytest.raises(SecretKeyError, match="encryption key not found"):
        keys.unwrap(wrapped, PLACE.about)
    with pytest.raises(SecretKeyError, match=r"the key 2025 is needed, and Vault is asked for vault:transit/muster:v"):
        keys.unwrap(WrappedKey("2025", b"abc"), PLACE.about)
    with pytest.raises(SecretKeyError, match="is not as Vault made it"):
        keys.unwrap(WrappedKey(wrapped.key_id, b"\xff"), PLACE.about)
    vault.refusal = Answer(200, {"data": {"min_decryption_version": 1, "latest_version": 1, "derived": True}})
    with pytest.raises(SecretKeyError, match="must encrypt, and not be derived"):
        keys.active_key_id()
    vault.refusal = Answer(200, {"data": {"keys": {}}})
    with pytest.raises(SecretKeyError, match="is no transit engine"):
        keys.key_ids()


def test_a_slow_vault_is_left_after_the_limit_and_queried_again_after_a_pause(vault: PlayedVault) -> None:
    now = [0.0]
    keys = vault.keys(timeout_s=1.0, monotonic=lambda: now[0])
    vault.quiet = threading.Event()
    with pytest.raises(SecretKeyError, match=r"Vault does not answer: no whole answer in 1 s"):
        keys.active_key_id()
    num_before = len(vault.server.requested)
    with pytest.raises(SecretKeyError, match="no whole answer"):
        keys.active_key_id()
    assert len(vault.server.requested) == num_before, "while it is silent no thread waits for it again"
    vault.quiet.set()
    now[0] = PAUSE_S + 1
    assert keys.active_key_id() == f"vault:transit/{KEY}:v1"
    assert len(vault.server.requested) == num_before + 1


def test_after_a_pause_one_call_tries_it_and_the_others_are_refused_meanwhile(vault: PlayedVault) -> None:
    now = [0.0]
    calls = vault.calls(timeout_s=1.0, monotonic=lambda: now[0])
    vault.quiet = threading.Event()
    with pytest.raises(SecretKeyError, match="no whole answer") as silent:
        calls.get(PATH)
    assert silent.value.retry_after_s == PAUSE_S
    now[0] = PAUSE_S - 0.5
    with pytest.raises(SecretKeyError, match="no whole answer") as refused:
        calls.get(PATH)
    assert (refused.value.retry_after_s, len(vault.server.requested)) == (1, 1)
    now[0] = PAUSE_S + 1
    patient = vault.calls(timeout_s=30.0, monotonic=lambda: now[0])
    patient._circuit = calls._circuit
    trial = threading.Thread(target=patient.get, args=(PATH,))
    trial.start()
    wait_until(lambda: len(vault.server.requested) == 2)
    with pytest.raises(SecretKeyError, match="no whole answer"):
        patient.get(PATH)
    assert len(vault.server.requested) == 2
    vault.quiet.set()
    trial.join(30)
    assert calls.get(PATH).status == 200


def test_no_more_calls_than_a_few_wait_at_once_and_the_others_are_refused(
    vault: PlayedVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault.quiet = threading.Event()
    calls = vault.calls(timeout_s=30.0)
    waiting = [threading.Thread(target=calls.get, args=(PATH,)) for _ in range(MOST_AT_ONCE)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: len(vault.server.requested) == MOST_AT_ONCE)
    with pytest.raises(SecretKeyError, match="Vault is slow: 8 calls wait") as refused:
        calls.get(PATH)
    assert refused.value.retry_after_s == 1
    monkeypatch.setattr(vault_circuit, "WAIT_S", 3600.0)
    with pytest.raises(SecretKeyError, match="Vault is slow"):
        calls.get(PATH)  # at once: a place would be waited for an hour
    assert len(vault.server.requested) == MOST_AT_ONCE
    vault.quiet.set()
    for thread in waiting:
        thread.join(30)
    assert calls.get(PATH).status == 200


def test_an_address_where_no_server_is_and_one_without_tls_are_reported(tmp_path: Path, vault: PlayedVault) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SecretKeyError, match="Vault does not answer: Connection refused"):
            VaultKeys(VaultCalls(VaultServer(nowhere, vault.token_file)), "transit", KEY).active_key_id()
    (tmp_path / "tls").mkdir()
    certificate, _ = write_certificate(tmp_path / "tls")
    plain = VaultServer(vault.server.url.replace("http:", "https:"), vault.token_file, certificate)
    with pytest.raises(SecretKeyError, match="supports no TLS that is accepted here"):
        VaultKeys(VaultCalls(plain), "transit", KEY).active_key_id()


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read: No such file"), ("none", "holds no certificates")]
)
def test_a_file_of_certificates_that_is_none_is_named(
    tmp_path: Path, vault: PlayedVault, content: str | None, words: str
) -> None:
    ca_file = tmp_path / "ca.pem"
    if content is not None:
        ca_file.write_text(content)
    server = VaultServer("https://127.0.0.1:9", vault.token_file, ca_file)
    with pytest.raises(SecretKeyError, match=f"MUSTER_VAULT_CA_FILE {words}"):
        VaultKeys(VaultCalls(server), "transit", KEY).active_key_id()


def test_the_token_is_read_for_each_call_and_must_be_private(vault: PlayedVault) -> None:
    keys = vault.keys()
    token = vault.token_file.read_text()
    vault.token_file.write_text("hvs.expired")
    with pytest.raises(SecretKeyError, match="permission denied"):
        keys.active_key_id()
    vault.token_file.write_text(token)
    assert keys.active_key_id()
    vault.token_file.write_text("two words")
    with pytest.raises(SecretKeyError, match="MUSTER_VAULT_TOKEN_FILE holds no token"):
        keys.active_key_id()
    vault.token_file.chmod(0o644)
    with pytest.raises(SecretKeyError, match="MUSTER_VAULT_TOKEN_FILE has the mode 0644"):
        keys.active_key_id()


def test_a_namespace_is_named_in_each_call(vault: PlayedVault) -> None:
    vault.namespace = "gpu/fleet"
    assert vault.keys(namespace="gpu/fleet").active_key_id()
    with pytest.raises(SecretKeyError, match="permission denied"):
        vault.keys().active_key_id()


def test_values_move_from_a_file_to_vault_while_both_open_and_no_call_is_within_a_transaction(
    units: UnitOfWorkFactory, vault: PlayedVault, tmp_path: Path
) -> None:
    fleet = make_fleet(units)
    in_file = key_file(tmp_path / "keys", "2026")
    secret = set_secret(units, in_file, fleet.tenant_id, "hf-token", VALUE)
    open_ones: list[int] = []
    answer = vault.answer

    def counting(requested: object) -> Answer:
        with units.read() as session:
            open_ones.append(session.scalar(OPEN_TRANSACTIONS) or 0)
        return answer(requested)  # type: ignore[arg-type]

    vault.answer = counting  # type: ignore[method-assign]
    both = JoinedKeys(in_file, vault.keys(), by_service=True)
    rotated = rotate_secret(units, both, secret, b"the next one")
    assert rotated.version == 2
    assert rewrap_once(units, both).num_rewrapped == 1
    vault.rotate()
    assert rewrap_once(units, both).num_rewrapped == 2
    with units.read() as session:
        found = session.execute(select(SecretVersion.key_id, func.count()).group_by(SecretVersion.key_id)).all()
        stored = session.scalars(select(SecretVersion).order_by(SecretVersion.version)).all()
    assert [tuple(row) for row in found] == [(f"vault:transit/{KEY}:v2", 2)]
    both_values = {VALUE, b"the next one"}
    assert {opened(vault.keys(), *each) for each in placed(fleet.tenant_id, secret.id, stored)} == both_values
    assert (len(open_ones) > 6, set(open_ones)) == (True, {0})
    back = JoinedKeys(in_file, vault.keys(), by_service=False)
    assert rewrap_once(units, back).num_rewrapped == 2
    with units.read() as session:
        stored = session.scalars(select(SecretVersion)).all()
    assert {opened(in_file, *each) for each in placed(fleet.tenant_id, secret.id, stored)} == both_values


def placed(tenant_id: TenantId, secret_id: SecretId, rows: Sequence[SecretVersion]) -> Iterator[tuple[Place, Envelope]]:
    for row in rows:
        envelope = Envelope(WrappedKey(row.key_id, row.wrapped_key), row.nonce, row.sealed, row.num_bytes)
        yield Place(tenant_id, secret_id, "hf-token", row.version), envelope


def test_settings_choose_the_source_and_name_what_is_missing(tmp_path: Path, vault: PlayedVault) -> None:
    given = {"MUSTER_SECRET_KEY_SOURCE": "vault", "MUSTER_VAULT_URL": vault.server.url}
    with pytest.raises(SettingsError, match="MUSTER_VAULT_KEY"):
        keys_of_settings(load_settings(given))
    given |= {"MUSTER_VAULT_KEY": KEY, "MUSTER_VAULT_TOKEN_FILE": str(tmp_path / "none")}
    with pytest.raises(SettingsError, match="none cannot be read"):
        keys_of_settings(load_settings(given))
    whole = load_settings(given | {"MUSTER_VAULT_TOKEN_FILE": str(vault.token_file)})
    keys = keys_of_settings(whole)
    assert keys is not None
    assert keys.active_key_id() == f"vault:transit/{KEY}:v1"
    key_file(tmp_path / "keys", "2026")
    both_set = whole.model_copy(update={"secret_keys_file": tmp_path / "keys"})
    both = keys_of_settings(both_set)
    assert both is not None
    assert both.key_ids() == {"2026", f"vault:transit/{KEY}:v1"}
    assert both.active_key_id() == f"vault:transit/{KEY}:v1"
    back = keys_of_settings(both_set.model_copy(update={"secret_key_source": "file"}))
    assert back is not None
    assert (back.active_key_id(), back.key_ids()) == ("2026", both.key_ids())
    with pytest.raises(SettingsError, match="MUSTER_VAULT_URL"):
        load_settings({"MUSTER_VAULT_URL": "http://vault.example:8200"})
