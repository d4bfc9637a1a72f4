"""The keys that protect secrets: of a file, of Vault, or of both while values move, as the settings say."""

from pathlib import Path

from control.secrets.joined_keys import JoinedKeys
from control.secrets.key_file import FileKeys
from control.secrets.key_wrapping import KeyWrapper
from control.secrets.vault_calls import VaultCalls, VaultServer
from control.secrets.vault_keys import VaultKeys
from muster.settings import Settings, read_private_file


def keys_of_settings(settings: Settings) -> KeyWrapper | None:
    """Return the keys; None: this control plane keeps no secrets. Vault is not asked.

    Raises:
        SettingsError: a setting of Vault is missing, or the token's file cannot be read.
    """
    by_vault = settings.secret_key_source == "vault"  # noqa: S105  # a choice, no secret
    local = None if settings.secret_keys_file is None else FileKeys(settings.secret_keys_file)
    if not by_vault and (local is None or settings.vault_url is None):
        return local
    vault = _vault_keys(settings)
    return vault if local is None else JoinedKeys(local, vault, by_service=by_vault)


def _vault_keys(settings: Settings) -> VaultKeys:
    settings.require("vault_url", "vault_key", "vault_token_file")
    token_file = Path(str(settings.vault_token_file))
    read_private_file(token_file)
    server = VaultServer(
        str(settings.vault_url),
        token_file,
        settings.vault_ca_file,
        settings.vault_namespace,
        settings.vault_timeout_s,
    )
    return VaultKeys(VaultCalls(server), settings.vault_mount, str(settings.vault_key))
