"""Settings of every process: environment over file over default, each value checked at start, all faults at once.

A setting ``x_y`` is ``MUSTER_X_Y`` in the environment and ``x_y`` in the YAML file that ``MUSTER_SETTINGS`` names.
"""

import os
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import SplitResult, urlsplit

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator

from muster.domain.evidence.repairs import RepairVerb
from muster.domain.loopback import is_loopback
from muster.domain.notifications.mail_addresses import is_mail_address
from muster.domain.strict import StrictModel
from muster.durable import create_durably
from muster.plain_files import UnfitFileError, read_private

PREFIX: Final = "MUSTER_"
SECRET_KEY_BYTES: Final = 32
LEAST_JOB_UID: Final = 65_536
"""Least number of a job's user: below are the numbers of systems, people, and the user without rights (65,534)."""
MOST_JOB_UID: Final = 2_147_483_646
KERNEL_LOGS: Final = ("auto", "kmsg", "journal")
"""Sources of the agent's kernel log: auto is /dev/kmsg, and the journal where that cannot be read."""
_NOT_SETTINGS: Final = frozenset(
    {
        "SETTINGS",
        "FAILPOINTS",
        "POSTGRES_BIN",
        "BROKER_BIN",
        "API_KEY",
        "PROFILE",
        "ATTEMPT_ID",
        "BUNDLE",
        "BUNDLE_DIR",
        "JOB_ID",
        "FENCE",
        "NODE_ID",
        "OUTLETS",
        "SECRETS_DIR",
        "TRAIN_FAILPOINT",
    }
)
"""MUSTER_ names that other parts read, or that the supervisor gives to programs."""


class SettingsError(Exception):
    """Says every fault at once, one a line."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("the settings are not usable:\n" + "\n".join(f"  - {fault}" for fault in faults))


def _split(text: str) -> SplitResult:
    """Return an address's parts. Raises ValueError: its port is none."""
    parts = urlsplit(text)
    _ = parts.port
    return parts


def _http_url(text: str) -> str:
    parts = _split(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError("must be https:// beyond loopback: a key would cross the network in clear")
    return text.rstrip("/")


def _database_url(text: str) -> str:
    if not text.startswith(("postgresql://", "postgresql+psycopg://")):
        raise ValueError("must begin with postgresql://")
    return text


def _broker_url(text: str) -> str:
    if not text.startswith(("redis://", "rediss://", "redis+socket://")):
        raise ValueError("must begin with redis://, rediss:// or redis+socket://")
    return text


def _store_url(text: str) -> str:
    return _http_url(text.replace("{bucket}", "bucket")) and text.rstrip("/")


def _index_url(text: str) -> str:
    parts = _split(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "must have no user or password: the builds of tenants read it; name a mirror that asks for none"
        )
    return text


def _smtp_url(text: str) -> str:
    parts = _split(text)
    if parts.scheme not in {"smtp", "smtps"} or not parts.hostname or parts.password is not None:
        raise ValueError("must be smtp://USER@HOST:PORT or smtps://USER@HOST:PORT; its password has a file of its own")
    return text


def _mail_address(text: str) -> str:
    if not is_mail_address(text):
        raise ValueError("must be one mail address, such as muster@example.org")
    return text


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


def _kernel_log(text: str) -> str:
    if text not in KERNEL_LOGS and not text.startswith("/"):
        raise ValueError("must be auto, kmsg, journal, or the absolute path of a journal's folder or file")
    return text


def _uid_range(value: object) -> tuple[int, int]:
    first, _, last = str(value).partition("-")
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise ValueError("must be FIRST-LAST, two user numbers, such as 1879048192-2147352575")
    if not LEAST_JOB_UID <= int(first) <= int(last) <= MOST_JOB_UID:
        raise ValueError(f"must go up, from {LEAST_JOB_UID} on and to {MOST_JOB_UID} at most")
    return int(first), int(last)


def _repair_verbs(value: object) -> tuple[RepairVerb, ...]:
    names = [str(each).strip() for each in (value if isinstance(value, list | tuple) else str(value).split(","))]
    accepted = [verb.value for verb in RepairVerb]
    unknown = sorted({name for name in names if name and name not in accepted})
    if unknown:
        raise ValueError(f"there is no {', '.join(unknown)}; any of {', '.join(accepted)}, with commas between")
    return tuple(RepairVerb(name) for name in names if name)


def _folders(value: object) -> tuple[Path, ...]:
    texts = [str(each).strip() for each in (value if isinstance(value, list | tuple) else str(value).split(","))]
    found = tuple(Path(text) for text in texts if text)
    if unfit := [str(each) for each in found if not each.is_absolute() or ".." in each.parts or len(each.parts) == 1]:
        raise ValueError(f"must be absolute paths with commas between, without `..`, and not /: {', '.join(unfit)}")
    return found


def _networks(value: object) -> tuple[str, ...]:
    texts = [str(each).strip() for each in (value if isinstance(value, list | tuple) else str(value).split(","))]
    try:
        return tuple(str(ip_network(text)) for text in texts if text)
    except ValueError as error:
        raise ValueError(f"must be addresses or networks such as 10.0.0.0/24, with commas between: {error}") from error


def _hosts(value: object) -> tuple[str, ...]:
    given = value if isinstance(value, list | tuple) else str(value).split(",")
    texts = [str(each).strip() for each in given if str(each).strip()]
    for text in texts:
        parts = _split(f"//{text}")
        if parts.netloc != text or "@" in text or not parts.hostname:
            raise ValueError(f"{text!r} is no host such as files.example or files.example:8443; give commas between")
    return tuple(texts)


class Settings(StrictModel):
    database_url: Annotated[str, AfterValidator(_database_url)] | None = None
    broker_url: Annotated[str, AfterValidator(_broker_url)] | None = None
    secret_key: SecretStr | None = None
    secret_key_file: Annotated[Path, Field(strict=False)] | None = None
    secret_keys_file: Annotated[Path, Field(strict=False)] | None = None
    """The keys that protect tenants' secrets, one a line, the first for new ones. Without it none can be stored."""
    bill_keys_file: Annotated[Path, Field(strict=False)] | None = None
    """The Ed25519 keys that sign bills, one a line, the first for new ones. Without it bills are not signed."""
    secret_key_source: Literal["file", "vault"] = "file"  # noqa: S105  # a choice, no secret
    """What protects tenants' secrets: `secret_keys_file`, or a key of Vault's transit engine.

    Where both are set, each opens what it protects."""
    vault_url: Annotated[str, AfterValidator(_http_url)] | None = None
    vault_mount: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", max_length=64)] = "transit"
    """The path at which Vault's transit engine is mounted."""
    vault_key: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$", max_length=64)] | None = None
    """The name of the key in Vault's transit engine."""
    vault_token_file: Annotated[Path, Field(strict=False)] | None = None
    """The file with Vault's token, mode 0600. It is read for each call, since Vault's agent renews it."""
    vault_ca_file: Annotated[Path, Field(strict=False)] | None = None
    vault_namespace: Annotated[str, Field(pattern=r"^[!-~]{1,256}$")] | None = None
    vault_timeout_s: Annotated[float, Field(ge=0.1, le=30.0, strict=False)] = 5.0
    """A call to Vault may take so long."""
    api_host: str = "127.0.0.1"
    api_port: Annotated[int, Field(ge=1, le=65535, strict=False)] = 8420
    api_tls_certificate: Annotated[Path, Field(strict=False)] | None = None
    api_tls_key: Annotated[Path, Field(strict=False)] | None = None
    api_insecure_bind: Annotated[bool, Field(strict=False)] = False
    api_trusted_proxies: Annotated[tuple[str, ...], BeforeValidator(_networks)] = ()
    """The proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted. By default none, not even on loopback."""
    api_url: Annotated[str, AfterValidator(_http_url)] | None = None
    api_key_file: Annotated[Path, Field(strict=False)] | None = None
    api_ca_file: Annotated[Path, Field(strict=False)] | None = None
    scheduler_lease_s: Annotated[float, Field(ge=0.5, le=60.0, strict=False)] = 8.0
    """Time after which another scheduler takes the lead from one whose cycle does not advance."""
    state_dir: Annotated[Path, Field(strict=False)] = Path(".muster")
    simulated_boot_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    checkpoints_dir: Annotated[Path, Field(strict=False)] | None = None
    pair_probe_port: Annotated[int, Field(ge=1, le=65535, strict=False)] | None = None
    kernel_log: Annotated[str, AfterValidator(_kernel_log)] = "auto"
    scratch_dir: Annotated[Path, Field(strict=False)] | None = None
    scratch_bytes: Annotated[int, Field(ge=0, strict=False)] | None = None
    bundle_cache_bytes: Annotated[int, Field(ge=1, strict=False)] = 50_000_000_000
    """The most that the copies of bundles may take on a host, in all. The ones unused for longest go first."""
    package_index: Annotated[str, AfterValidator(_index_url)] | None = None
    """The index that hosts build the environments of jobs from: its `simple` address. No other one is asked."""
    wheelhouse: Annotated[Path, Field(strict=False), AfterValidator(_absolute)] | None = None
    """A folder of wheels on the host, in addition to the index or in its place. Jobs' users must be able to read it."""
    package_index_ca: Annotated[Path, Field(strict=False), AfterValidator(_absolute)] | None = None
    """Certificate authorities of the index that the system does not know. Jobs' users must be able to read the file."""
    package_index_hosts: Annotated[tuple[str, ...], BeforeValidator(_hosts)] = ()
    """Other hosts, as `host` or `host:port`, from which the index has its files served. Builds reach no others."""
    source_builds: Literal["isolated", "anywhere", "never"] = "isolated"
    """Where a job's source distributions are built: only as a user and in a network of their own, or as it comes."""
    output_wait_bytes: Annotated[int, Field(ge=1, strict=False)] = 200_000_000_000
    """The most that outputs of ended attempts may take on a host until they are uploaded, in all."""
    job_uids: Annotated[tuple[int, int], BeforeValidator(_uid_range)] | None = None
    job_secrets_dir: Annotated[Path, Field(strict=False)] | None = None
    job_python: Annotated[Path, Field(strict=False)] | None = None
    repair_verbs: Annotated[tuple[RepairVerb, ...], BeforeValidator(_repair_verbs)] = ()
    """The repairs that this host's agent may do on a GPU, by the control plane's order. By default none."""
    warm_start: Annotated[bool, Field(strict=False)] = True
    store_url: Annotated[str, AfterValidator(_store_url)] | None = None
    """The content store, S3-compatible. `{bucket}` in it stands for the bucket, where that is a part of the name."""
    store_public_url: Annotated[str, AfterValidator(_store_url)] | None = None
    """The store's address as clients and hosts reach it, if that is another."""
    store_gateway_url: Annotated[str, AfterValidator(_store_url)] | None = None
    """The address, as clients reach it, of the `muster store` process that joins the chunks of one file of outputs."""
    store_id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] = "main"
    """The store's name, by which residency rules of tenants permit it."""
    store_site: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """The site at which the store keeps its data, as hosts have theirs in the label `site`. Without it, none."""
    store_checkpoint_dirs: Annotated[tuple[Path, ...], BeforeValidator(_folders)] = ()
    """Folders of checkpoints, as hosts name them, that the `muster store` process reads: for `muster ckpt get`."""
    store_bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] = "muster"
    store_region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}$")] = "us-east-1"
    store_key_file: Annotated[Path, Field(strict=False)] | None = None
    store_ca_file: Annotated[Path, Field(strict=False)] | None = None
    store_host: str = "127.0.0.1"
    """Of our own service of a content store, as the settings below."""
    store_port: Annotated[int, Field(ge=1, le=65535, strict=False)] = 8421
    store_dir: Annotated[Path, Field(strict=False)] | None = None
    store_tls_certificate: Annotated[Path, Field(strict=False)] | None = None
    store_tls_key: Annotated[Path, Field(strict=False)] | None = None
    store_insecure_bind: Annotated[bool, Field(strict=False)] = False
    store_reserve_bytes: Annotated[int, Field(ge=0, strict=False)] = 2 << 30
    """So much of its disk stays free: an upload that would take it is refused."""
    store_connections: Annotated[int, Field(ge=1, le=4096, strict=False)] = 256
    console_url: Annotated[str, AfterValidator(_http_url)] | None = None
    """The console's address as people reach it, for links in notifications. Without it they have none."""
    notification_ca_file: Annotated[Path, Field(strict=False)] | None = None
    """Certificate authorities of receivers of notifications that the system does not know."""
    smtp_url: Annotated[str, AfterValidator(_smtp_url)] | None = None
    """The server that sends mail: `smtp://USER@HOST:587` (STARTTLS beyond loopback) or `smtps://USER@HOST`."""
    smtp_sender: Annotated[str, AfterValidator(_mail_address)] = "muster@localhost"
    """The address from which mail comes."""
    smtp_password_file: Annotated[Path, Field(strict=False)] | None = None
    """The file with the password of the SMTP server's user, mode 0600."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        for part in ("api", "store"):
            certificate, key = getattr(self, f"{part}_tls_certificate"), getattr(self, f"{part}_tls_key")
            if (certificate is None) != (key is None):
                raise ValueError(f"{part}_tls_certificate and {part}_tls_key come together")
            is_bare = certificate is None and not getattr(self, f"{part}_insecure_bind")
            if is_bare and not is_loopback(getattr(self, f"{part}_host")):
                raise ValueError(f"{part}_host beyond loopback needs {part}_tls_certificate and {part}_tls_key")
        return self

    def require(self, *names: str) -> Self:
        """Raise ``SettingsError`` that names each of ``names`` that is not set; else return the settings."""
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            raise SettingsError([f"{PREFIX}{name.upper()}: is needed here and not set" for name in missing])
        return self

    def secret_key_bytes(self) -> bytes:
        """Return the 32-byte key that signs cursors and seals secrets.

        Raises:
            SettingsError: no key, a key of another length, or a key file that others can read.
        """
        if self.secret_key is not None:
            return _decoded_key(self.secret_key.get_secret_value(), f"{PREFIX}SECRET_KEY")
        if self.secret_key_file is None:
            raise SettingsError(
                [f"{PREFIX}SECRET_KEY or {PREFIX}SECRET_KEY_FILE: is needed; `muster up` makes one on its first start"]
            )
        return _decoded_key(read_private_file(self.secret_key_file), str(self.secret_key_file))


def _decoded_key(text: str, origin: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != SECRET_KEY_BYTES:
        raise SettingsError(
            [f"{origin}: must be {SECRET_KEY_BYTES} bytes as {SECRET_KEY_BYTES * 2} hexadecimal digits"]
        )
    return key


def read_private_file(path: Path) -> str:
    """Return a file's text. Raises SettingsError: it cannot be read, or others than its owner can read it."""
    try:
        return read_private(path)
    except UnfitFileError as fault:
        raise SettingsError([f"{path} {fault}"]) from fault


def make_secret_key_file(path: Path) -> None:
    """Write a fresh key, mode 0600, unless there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    create_durably(path, f"{os.urandom(SECRET_KEY_BYTES).hex()}\n".encode("ascii"))


def make_secret_keys_file(path: Path) -> None:
    """Write a file with one fresh key of secrets, mode 0600, unless there is one."""
    words = "# Keys of tenants' secrets: the first one protects new values, any of them opens stored ones."
    create_durably(path, f"{words}\nlocal-1 {os.urandom(SECRET_KEY_BYTES).hex()}\n".encode("ascii"))


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read, merge and check. An empty variable leaves a setting that may be absent as it is.

    Raises:
        SettingsError: with every fault: unknown names, wrong values, an unreadable file.
    """
    environ = os.environ if environ is None else environ
    values = _file_values(environ.get(f"{PREFIX}SETTINGS"))
    for name, value in environ.items():
        if not name.startswith(PREFIX) or name.removeprefix(PREFIX) in _NOT_SETTINGS:
            continue
        setting = name.removeprefix(PREFIX).lower()
        field = Settings.model_fields.get(setting)
        if value or field is None or field.default is not None:
            values[setting] = value
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError([_sentence(fault) for fault in error.errors(include_input=False)]) from None


def _file_values(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError([f"{path}: cannot be read as YAML ({error})"]) from error
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise SettingsError([f"{path}: must hold one mapping of setting names to values"])
    return dict(document)


def _sentence(fault: Any) -> str:
    name = f"{PREFIX}{str(fault['loc'][0]).upper()}: " if fault["loc"] else ""
    if fault["type"] == "extra_forbidden":
        return f"{name}is not a setting"
    return f"{name}{fault['msg'].removeprefix('Value error, ')}"
