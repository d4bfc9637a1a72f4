"""What `docker-compose.yml` promises, read from the file: it is valid, hardened, and keeps secrets out of sight."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.compose_file import COMPOSE_FILE, ROOT, RefusedError, Service, in_order, read_compose, services_of
from tests.deploy.dockerfile import read_dockerfile

GIVEN: Final = {"MUSTER_API_NAME": "localhost"}
DOCUMENT: Final = read_compose(GIVEN)
SERVICES: Final = services_of(DOCUMENT)
EACH: Final = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES.keys())
SECRETS: Final = re.compile(r"(?i)(password|secret|token|_key)$")


def schema_states(path: Path) -> str:
    """What the Compose specification's JSON schema has against it; nothing: ''."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "-o", "TEXT"]
    answer = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    return "" if answer.returncode == 0 else answer.stdout + answer.stderr


def test_the_file_is_valid_by_the_specifications_schema() -> None:
    assert schema_states(COMPOSE_FILE) == ""


def test_the_schema_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE_FILE.read_text().replace("restart: unless-stopped", "restarts: unless-stopped"))
    assert "restarts" in schema_states(wrong)


def test_it_is_valid_once_every_variable_is_put_in(tmp_path: Path) -> None:
    filled = tmp_path / "docker-compose.yml"
    filled.write_text(yaml.safe_dump(DOCUMENT))
    assert schema_states(filled) == ""


def test_a_missing_name_is_refused_with_what_to_do() -> None:
    for variables in ({}, {"MUSTER_API_NAME": ""}):
        with pytest.raises(RefusedError, match=r"MUSTER_API_NAME is not set.*such as MUSTER_API_NAME=localhost"):
            read_compose(variables)


def test_the_example_holds_every_variable_and_no_other() -> None:
    example = (ROOT / "deploy" / "compose" / "example.env").read_text()
    shown = set(re.findall(r"^#?(MUSTER_[A-Z_]+)=", example, re.MULTILINE))
    assert shown == set(re.findall(r"\$\{(MUSTER_[A-Z_]+)", COMPOSE_FILE.read_text()))
    given = dict(line.split("=", 1) for line in example.splitlines() if line.startswith("MUSTER_"))
    read_compose(given)


@EACH
def test_no_service_may_do_more_than_it_needs(service: Service) -> None:
    table = service.table
    assert table["user"] == "10001:10001"
    assert table["read_only"] is True
    assert table["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in table["security_opt"]
    assert not {"privileged", "cap_add", "devices", "pid", "ipc", "userns_mode"} & table.keys()
    assert all(not source.startswith(("/", ".", "~")) for source, _ in service.mounts.values())


@EACH
def test_no_service_can_eat_the_machine(service: Service) -> None:
    assert {"mem_limit", "cpus", "pids_limit"} <= service.table.keys()
    assert service.table["logging"]["options"].keys() == {"max-size", "max-file"}


@EACH
def test_what_stays_is_watched_and_comes_back(service: Service) -> None:
    if service.is_one_shot or service.table.get("profiles"):
        assert service.health_command is None
        assert service.table["restart"] == "no"
    else:
        assert service.health_command
        assert service.table["restart"] == "unless-stopped"


@EACH
def test_no_secret_stands_in_an_environment(service: Service) -> None:
    for name, value in service.environment.items():
        if SECRETS.search(name) and not value.startswith("/"):
            raise AssertionError(f"{service.name}: {name} is given by value")
        assert "://" not in value or "@" not in value


@EACH
def test_images_are_pinned_to_a_version(service: Service) -> None:
    image = str(service.table["image"])
    assert re.fullmatch(r"[a-z/-]+:\d+\.\d+(\.\d+)?(-bookworm)?(@sha256:[0-9a-f]{64})?", image), image


@pytest.mark.parametrize(
    ("name", "fixed_in"),
    [
        ("redis", (7, 4, 6)),  # CVE-2025-49844: a script runs code on the broker
        ("postgres", (17, 10)),  # CVE-2026-6473 and ten others
    ],
)
def test_images_of_others_are_of_a_release_without_a_known_flaw(name: str, fixed_in: tuple[int, ...]) -> None:
    version = re.match(rf"{name}:([\d.]+)", str(SERVICES[name].table["image"]))
    assert version is not None
    assert tuple(map(int, version[1].split("."))) >= fixed_in


@EACH
def test_a_service_waits_for_what_it_needs_by_the_right_sign(service: Service) -> None:
    for name, condition in service.needs.items():
        is_one_shot = SERVICES[name].is_one_shot
        assert condition == ("service_completed_successfully" if is_one_shot else "service_healthy")


def test_needs_go_in_no_circle() -> None:
    names = [service.name for service in in_order(SERVICES)]
    assert names.index("prepare") < names.index("postgres") < names.index("migrate") < names.index("api")
    assert names.index("bootstrap") < names.index("enrol") < names.index("h100-1-agent")


def test_only_api_and_store_are_reachable_from_outside_and_by_default_from_this_machine_alone() -> None:
    published = {name: service.table["ports"] for name, service in SERVICES.items() if "ports" in service.table}
    assert published == {"api": ["127.0.0.1:8420:8420"], "store": ["127.0.0.1:8421:8421"]}


def test_the_content_store_has_its_own_secrets_alone() -> None:
    volumes = {source for source, _ in SERVICES["store"].mounts.values()}
    assert volumes == {"store-secret", "objects", "checkpoints"}
    assert not SERVICES["store"].mounts["/var/lib/muster/checkpoints"][1], "it reads checkpoints, and writes none"
    users = {
        name for name, service in SERVICES.items() if "store-secret" in {src for src, _ in service.mounts.values()}
    }
    assert users == {"prepare", "migrate", "bootstrap", "api", "scheduler", "worker-control", "store"}


def test_hosts_reach_neither_the_database_nor_the_control_planes_secrets() -> None:
    assert DOCUMENT["networks"]["control"]["internal"] is True
    for service in SERVICES.values():
        if str(service.table["image"]).startswith("muster-host"):
            assert service.table["networks"] == ["hosts"]
            volumes = {source for source, _ in service.mounts.values()}
            assert not volumes & {"control", "database", "database-secret", "broker-secret", "store-secret", "keys"}
    assert SERVICES["postgres"].table["networks"] == ["control"]


def test_secrets_are_written_by_their_makers_alone() -> None:
    makers = {"control": {"prepare"}, "database-secret": {"prepare"}, "broker-secret": {"prepare"}}
    makers |= {"host-secrets": {"prepare"}, "store-secret": {"prepare"}, "keys": {"bootstrap", "enrol"}}
    for volume, allowed in makers.items():
        writers = {
            service.name
            for service in SERVICES.values()
            for source, may_write in service.mounts.values()
            if source == volume and may_write
        }
        assert writers == allowed, volume


def test_every_volume_is_named_and_used() -> None:
    used = {source for service in SERVICES.values() for source, _ in service.mounts.values()}
    assert used == set(DOCUMENT["volumes"])


def test_the_images_have_a_folder_of_our_user_where_a_volume_is_written() -> None:
    """A new volume takes owner and mode of the image's folder; without one root's would stand there."""
    for service in SERVICES.values():
        if not service.is_ours:
            continue
        final = read_dockerfile(ROOT / service.table["build"]["dockerfile"])[-1]
        script = " ".join(final.of("RUN"))
        for target, (_, may_write) in service.mounts.items():
            if may_write:
                assert target in _made_folders(script), f"{service.name}: {target}"


def _made_folders(script: str) -> set[str]:
    made = set(re.findall(r"(?<=\s)/(?:run|var)/[\w/.-]+", script))
    looped = re.search(r"for folder in (?P<names>[^;]+);", script)
    return made | {f"/run/muster/{name}" for name in (looped["names"].split() if looped else [])}


def test_the_versions_of_our_images_are_the_projects() -> None:
    version = _project()["version"]
    ours = {str(service.table["image"]) for service in SERVICES.values() if service.is_ours}
    assert ours == {f"muster-control:{version}", f"muster-host:{version}"}


def _project() -> dict[str, Any]:
    import tomllib  # noqa: PLC0415

    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table
