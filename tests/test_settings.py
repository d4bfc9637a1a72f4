"""Settings: every fault at once, environment over file, keys that no other account can read."""

from pathlib import Path

import pytest

from muster.settings import SECRET_KEY_BYTES, SettingsError, load_settings, make_secret_key_file


def test_every_fault_is_stated_at_once_by_its_name() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"MUSTER_API_PORT": "70000", "MUSTER_LOG_LEVEL": "loud", "MUSTER_TYPO": "1"})
    said = str(caught.value)
    assert all(name in said for name in ("MUSTER_API_PORT", "MUSTER_LOG_LEVEL", "MUSTER_TYPO: is not a setting"))
    assert len(caught.value.faults) == 3


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "muster.yaml"
    file.write_text("api_port: 9000\nlog_level: debug\n", encoding="utf-8")
    settings = load_settings({"MUSTER_SETTINGS": str(file), "MUSTER_API_PORT": "9001"})
    assert (settings.api_port, settings.log_level) == (9001, "debug")


def test_an_empty_variable_is_as_if_it_were_not_set(tmp_path: Path) -> None:
    """``.`` is the path that an empty text would be, and no interpreter."""
    assert load_settings({"MUSTER_JOB_PYTHON": "", "MUSTER_SCRATCH_DIR": ""}).job_python is None
    path = tmp_path / "settings.yaml"
    path.write_text("job_python: /opt/python")
    assert load_settings({"MUSTER_SETTINGS": str(path), "MUSTER_JOB_PYTHON": ""}).job_python == Path("/opt/python")
    with pytest.raises(SettingsError, match="MUSTER_LOG_LEVEL"):
        load_settings({"MUSTER_LOG_LEVEL": ""})


def test_sources_of_packages_are_an_index_without_a_password_with_a_port_that_is_one_and_absolute_paths(
    tmp_path: Path,
) -> None:
    given = {"MUSTER_PACKAGE_INDEX": "http://pypi.lan/simple/", "MUSTER_WHEELHOUSE": str(tmp_path)}
    assert load_settings(given).package_index == "http://pypi.lan/simple/"
    assert load_settings(given).wheelhouse == tmp_path
    for name, wrong, words in (
        ("PACKAGE_INDEX", "https://user:word@pypi.example/simple", "must have no user or password"),
        ("PACKAGE_INDEX", "file:///srv/wheels", "must be an http:// or https:// address"),
        ("PACKAGE_INDEX", "https://pypi.example:99999/simple", "Port out of range"),
        ("PACKAGE_INDEX_HOSTS", "files.example, more.example:none", "Port could not be cast"),
        ("PACKAGE_INDEX_HOSTS", "https://files.example", "'https://files.example' is no host"),
        ("VAULT_URL", "https://vault.example:82000", "Port out of range"),
        ("WHEELHOUSE", "wheels", "must be an absolute path"),
        ("PACKAGE_INDEX_CA", "ca.pem", "must be an absolute path"),
    ):
        with pytest.raises(SettingsError, match=f"MUSTER_{name}: {words}"):
            load_settings({f"MUSTER_{name}": wrong})


def test_proxies_are_networks_and_none_is_one_by_himself() -> None:
    assert load_settings({}).api_trusted_proxies == ()
    named = load_settings({"MUSTER_API_TRUSTED_PROXIES": "10.0.0.5, 10.1.0.0/16"})
    assert named.api_trusted_proxies == ("10.0.0.5/32", "10.1.0.0/16")
    for wrong in ("*", "proxy.example", "10.0.0.5/8"):
        with pytest.raises(SettingsError, match="MUSTER_API_TRUSTED_PROXIES: must be addresses or networks"):
            load_settings({"MUSTER_API_TRUSTED_PROXIES": wrong})


@pytest.mark.parametrize("content", ["- a list\n", "a: [1\n", "1: 2\n"])
def test_a_file_that_is_no_mapping_of_names_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "muster.yaml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match=r"muster\.yaml"):
        load_settings({"MUSTER_SETTINGS": str(file)})


def test_what_a_process_needs_is_named_when_it_is_missing() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({}).require("database_url", "broker_url")
    assert len(caught.value.faults) == 2


def test_no_process_starts_without_a_secret_key() -> None:
    with pytest.raises(SettingsError, match="muster up"):
        load_settings({}).secret_key_bytes()


def test_a_made_key_is_private_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    make_secret_key_file(path)
    first = load_settings({"MUSTER_SECRET_KEY_FILE": str(path)}).secret_key_bytes()
    make_secret_key_file(path)
    assert len(first) == SECRET_KEY_BYTES
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_settings({"MUSTER_SECRET_KEY_FILE": str(path)}).secret_key_bytes() == first


def test_a_key_that_others_can_read_or_that_is_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    make_secret_key_file(path)
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="0600"):
        load_settings({"MUSTER_SECRET_KEY_FILE": str(path)}).secret_key_bytes()
    with pytest.raises(SettingsError, match="64 hexadecimal"):
        load_settings({"MUSTER_SECRET_KEY": "abcd"}).secret_key_bytes()


def test_half_a_tls_pair_and_foreign_schemes_are_refused() -> None:
    for name, value in (
        ("MUSTER_API_TLS_KEY", "/k.pem"),
        ("MUSTER_DATABASE_URL", "mysql://x"),
        ("MUSTER_BROKER_URL", "amqp://x"),
        ("MUSTER_API_URL", "ftp://x"),
    ):
        with pytest.raises(SettingsError):
            load_settings({name: value})
