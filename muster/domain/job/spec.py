"""The specification of a job: program, shape, tier, restart and stop rules. It is validated whole at the edge."""

import re
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from muster.domain.exit.rerun_codes import RerunCodes
from muster.domain.job.bundle_spec import (
    BUNDLE_IN_CONTAINER,
    BundleDigest,
    ProgramPath,
    command_of_program,
    is_taken_by_bundle,
    path_of_program,
)
from muster.domain.job.container_spec import Container, Mount
from muster.domain.job.dataset_spec import Dataset, require_each_once
from muster.domain.job.environment_spec import Environment
from muster.domain.job.git_spec import GitSource
from muster.domain.job.output_spec import OutputPatterns
from muster.domain.job.placement_spec import NodeLabelRule, ParallelLayout, TopologyRule
from muster.domain.policy.quantities import MOST_S
from muster.domain.policy.stragglers import StragglerRule
from muster.domain.policy.watch import HangRule
from muster.domain.strict import AbsolutePath, EnvKey, Name, ObjectPrefix, StrictModel, Text

VALUE_FAULT_RULE: Final = re.compile(r"stop|(rollback|skip)(:[1-9][0-9]?){0,2}")
REFUSED_ENVIRONMENT_PREFIXES: Final = ("LD_", "NVIDIA_", "MUSTER_", "TORCHELASTIC_")
REFUSED_ENVIRONMENT: Final = frozenset(
    {"PATH", "BASH_ENV", "ENV", "IFS", "CUDA_VISIBLE_DEVICES", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONINSPECT"}
)
"""Names by which a program could reach past its sandbox, or which the supervisor itself sets."""
TENANTS_OWN: Final = frozenset({"MUSTER_OUTLETS", "MUSTER_TRAIN_FAULTS", "MUSTER_TRAIN_FAULTS_SEED"})
"""Variables of Muster that a tenant may set: where figures go, and faults on purpose, in its own program."""


_ENGINES_OWN: Final = ("ENROOT_", "DOCKER_", "CONTAINERS_", "PODMAN_")


def _is_refused(name: str) -> bool:
    is_taken = name in REFUSED_ENVIRONMENT or name.startswith(REFUSED_ENVIRONMENT_PREFIXES)
    return is_taken and name not in TENANTS_OWN


def _whole_as_float(value: object) -> object:
    """Convert a number that JSON writes without a point; any other value stays as it is and is refused later."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else value


def _has_bundle(info: ValidationInfo) -> bool:
    return info.data.get("bundle") is not None or info.data.get("git") is not None


class LauncherKind(StrEnum):
    TORCHRUN = "torchrun"
    COMMAND = "command"


class NodeLossRule(StrEnum):
    """The reaction to a silent host: ``wait`` for its whole lease, or relaunch ``fenced`` at once."""

    WAIT = "wait"
    FENCED = "fenced"


class Program(StrictModel):
    """``torchrun`` runs ``script`` with ``args`` once a rank; ``command`` runs ``argv`` once a node. Never a shell.

    By the host's interpreter, by ``python``, or by that of ``venv``, a virtual environment on the hosts, whose commands
    then come first on the program's path. In ``container`` all paths, and ``python``, are the image's. Or by that of
    ``environment``, which is built from a lock file of the bundle.

    With a ``bundle``, which each host gets before the program starts there, ``script``, ``working_dir`` and a path as
    first word of ``argv`` may be relative to it, and it is the working directory unless ``working_dir`` names another.
    """

    bundle: BundleDigest | None = None
    git: GitSource | None = None
    launcher: LauncherKind = Field(default=LauncherKind.TORCHRUN, strict=False)
    script: ProgramPath | None = None
    args: tuple[Text, ...] = Field(default=(), max_length=1000, strict=False)
    argv: tuple[Text, ...] = Field(default=(), max_length=1000, strict=False)
    working_dir: ProgramPath | None = None
    python: AbsolutePath | None = None
    venv: AbsolutePath | None = None
    container: Container | None = None
    environment: Environment | None = None
    env: dict[EnvKey, Text] = Field(default_factory=dict, max_length=500)

    @field_validator("script", "working_dir")
    @classmethod
    def _path_is_of_host_or_bundle(cls, path: str | None, info: ValidationInfo) -> str | None:
        return None if path is None else path_of_program(path, has_bundle=_has_bundle(info))

    @field_validator("argv")
    @classmethod
    def _command_stays_in_bundle(cls, argv: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        return command_of_program(argv, has_bundle=_has_bundle(info))

    @field_validator("env")
    @classmethod
    def _no_refused_names(cls, env: dict[str, str]) -> dict[str, str]:
        refused = sorted(filter(_is_refused, env))
        if refused:
            raise ValueError(f"these names are set by Muster or refused for safety: {', '.join(refused)}")
        return env

    @property
    def has_bundle(self) -> bool:
        """Whether hosts get a folder for it, by digest or from a repository."""
        return self.bundle is not None or self.git is not None

    @model_validator(mode="after")
    def _has_one_folder(self) -> Self:
        if self.bundle is not None and self.git is not None:
            raise ValueError("takes `bundle` or `git`, not both")
        return self

    @model_validator(mode="after")
    def _fits_its_launcher(self) -> Self:
        if self.launcher is LauncherKind.TORCHRUN:
            if self.argv:
                raise ValueError("launcher torchrun takes `script` and `args`, not `argv`")
            if self.script is None:
                raise ValueError("`script` is missing: launcher torchrun runs it once a rank")
        elif self.script is not None or self.args:
            raise ValueError("launcher command takes `argv`, not `script` or `args`")
        elif not self.argv:
            raise ValueError("`argv` is missing: launcher command runs it once a node")
        return self

    @model_validator(mode="after")
    def _has_one_environment(self) -> Self:
        if self.venv is not None and self.python is not None:
            raise ValueError("`venv` has an interpreter of its own; leave `python` out")
        if self.environment is not None:
            self._require_alone(self.environment)
        if self.container is None:
            return self
        if self.has_bundle and any(is_taken_by_bundle(one.target or one.source) for one in self.container.mounts):
            raise ValueError(f"{BUNDLE_IN_CONTAINER} in the container is the bundle's folder: mount elsewhere")
        if self.venv is not None:
            raise ValueError("`venv` is of the host; in a container, name the interpreter in it by `python`")
        if broken := sorted(name for name, value in self.env.items() if "\n" in value or "\r" in value):
            raise ValueError(f"`env` cannot carry a line break into a container: {', '.join(broken)}")
        if taken := sorted(name for name in self.env if name.startswith(_ENGINES_OWN)):
            raise ValueError(f"`env` must not steer the container engine: {', '.join(taken)}")
        return self

    def _require_alone(self, environment: Environment) -> None:
        if not self.has_bundle:
            raise ValueError(f"`environment` needs a `bundle`, which has its lock file {environment.lock}")
        for name in ("python", "venv", "container"):
            if getattr(self, name) is not None:
                raise ValueError(f"`environment` has an interpreter and packages of its own; leave `{name}` out")


class Shape(StrictModel):
    """A gang: ``nodes`` × ``gpus_per_node`` GPUs, or ``gpus`` in all; ``ranks_per_node`` is one a GPU unless stated.

    An elastic gang aims for ``nodes``, starts or continues with fewer where there are no more, and grows when GPUs are
    idle: each attempt has a size of its own.
    """

    nodes: Annotated[int, Field(ge=1, le=12_500)] = 1
    gpus_per_node: Annotated[int, Field(ge=1, le=72)] = 1
    ranks_per_node: Annotated[int, Field(ge=1, le=576)] | None = None
    min_nodes: Annotated[int, Field(ge=1, le=12_500)] | None = None
    max_nodes: Annotated[int, Field(ge=1, le=12_500)] | None = None
    gpus: Annotated[int, Field(ge=1, le=100_000)] | None = None

    @model_validator(mode="after")
    def _sizes_in_order(self) -> Self:
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            raise ValueError(f"`min_nodes` {self.min_nodes} is more than `nodes`, which is {self.nodes}")
        if self.max_nodes is not None and self.max_nodes < self.nodes:
            raise ValueError(f"`max_nodes` {self.max_nodes} is less than `nodes`, which is {self.nodes}")
        return self

    @model_validator(mode="after")
    def _states_its_size_once(self) -> Self:
        said = self.model_fields_set & {"nodes", "gpus_per_node", "ranks_per_node", "min_nodes", "max_nodes"}
        given = sorted(f"`{name}`" for name in said if getattr(self, name) is not None)
        if self.gpus is not None and given:
            raise ValueError(f"takes `gpus` alone, the sum over its hosts, not with {', '.join(given)}")
        return self

    def settled(self, gpus_of_host: int) -> "Shape":
        """Return the shape as nodes × GPUs if it names a sum: the fewest hosts with equal parts.

        ``gpus_of_host``: how many GPUs a host has.
        """
        if self.gpus is None:
            return self
        width = next(width for width in range(min(self.gpus, gpus_of_host, 72), 0, -1) if self.gpus % width == 0)
        return Shape(nodes=self.gpus // width, gpus_per_node=width)

    @property
    def sizes(self) -> range:
        """The numbers of hosts that an attempt may have."""
        return range(self.min_nodes or self.nodes, (self.max_nodes or self.nodes) + 1)

    @property
    def is_elastic(self) -> bool:
        return len(self.sizes) > 1

    @property
    def num_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def num_ranks_per_node(self) -> int:
        return self.ranks_per_node or self.gpus_per_node

    @property
    def has_a_gpu_for_each_rank(self) -> bool:
        return self.num_ranks_per_node == self.gpus_per_node


MAX_RESTARTS: Final = 3
"""Unless a job sets it: a fault that comes now and then has passed by then, a bug wastes two pauses and a half."""


class Restart(StrictModel):
    """The number of new attempts that the job's own faults may use up. Infrastructure faults never count."""

    max_restarts: Annotated[int, Field(ge=0, le=100)] = MAX_RESTARTS
    gpu_oom_doublings: Annotated[int, Field(ge=0, le=10)] = 0


class CheckpointRule(StrictModel):
    """The place of a job's checkpoints.

    Without a folder or a store each host keeps its own checkpoints, which suffices for one host only.

    ``encryption_keys`` names the one of the job's ``secrets`` that holds the keys under which checkpoints are
    encrypted, one a line in 64 hex digits: the first encrypts, any of them decrypts. Without it checkpoints are not
    encrypted.
    """

    folder: AbsolutePath | None = None
    store: ObjectPrefix | None = None
    credentials: Name | None = None
    encryption_keys: Name | None = None

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if self.folder is not None and self.store is not None:
            raise ValueError("takes `folder` or `store`, not both")
        if self.credentials is not None and self.store is None:
            raise ValueError("`credentials` are for a `store`, which is missing")
        return self


class HostLimits(StrictModel):
    """The resources of a host that each part of an attempt may use, all its processes together; None is without limit.

    A process beyond its memory is killed, a fork beyond the number of processes fails, a program beyond its processors
    or the rates of its disks is slowed down.
    """

    memory_bytes: Annotated[int, Field(ge=1 << 24, le=1 << 50)] | None = None
    pids: Annotated[int, Field(ge=1, le=1 << 22)] | None = None
    cpus: Annotated[float, Field(ge=0.01, le=8_192)] | None = None
    io_read_bytes_per_s: Annotated[int, Field(ge=1 << 16, le=1 << 50)] | None = None
    io_write_bytes_per_s: Annotated[int, Field(ge=1 << 16, le=1 << 50)] | None = None

    @field_validator("cpus", mode="before")
    @classmethod
    def _whole_numbers_are_cpus_too(cls, value: object) -> object:
        return _whole_as_float(value)


class JobSpec(StrictModel):
    """The specification that a tenant submits; ``muster.documents.field_texts.job_spec`` says what each field means."""

    name: Name
    program: Program
    shape: Shape = Field(default_factory=Shape)
    topology: TopologyRule = Field(default_factory=TopologyRule)
    layout: ParallelLayout | None = None
    node_labels: NodeLabelRule = Field(default_factory=NodeLabelRule)
    tier: Name = "on_demand"
    job_class: Name | None = None
    restart: Restart = Field(default_factory=Restart)
    checkpoint: CheckpointRule = Field(default_factory=CheckpointRule)
    limits: HostLimits = Field(default_factory=HostLimits)
    secrets: tuple[Name, ...] = Field(default=(), max_length=32, strict=False)
    secret_env: dict[EnvKey, Name] = Field(default_factory=dict, max_length=32)
    datasets: tuple[Dataset, ...] = Field(default=(), max_length=16, strict=False)
    outputs: OutputPatterns = ()
    wall_time_s: Annotated[float, Field(gt=0, le=MOST_S)] | None = None
    budget_gpu_hours: Annotated[float, Field(gt=0, le=1e9)] | None = None
    stop_grace_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    on_node_loss: NodeLossRule | None = Field(default=None, strict=False)
    on_hang: HangRule | None = None
    on_straggler: StragglerRule | None = None
    on_value_fault: Annotated[str, Field(max_length=16)] | None = None
    rerun_exit_codes: RerunCodes | None = None
    labels: dict[Name, Text] = Field(default_factory=dict, max_length=64)

    @field_validator("on_value_fault")
    @classmethod
    def _value_fault_rule_is_known(cls, rule: str | None) -> str | None:
        if rule is not None and VALUE_FAULT_RULE.fullmatch(rule) is None:
            raise ValueError(
                "must be stop, rollback[:GENERATIONS[:BUDGET]] or skip[:GENERATIONS[:BUDGET]], with numbers from 1 to "
                "99, such as rollback:2"
            )
        return rule

    @model_validator(mode="after")
    def _checkpoints_fit_a_container(self) -> Self:
        """Check the folder of checkpoints by the rules of mounts, since it is mounted for the program."""
        if self.program.container is None or self.checkpoint.folder is None:
            return self
        try:
            Mount(source=self.checkpoint.folder, read_only=False)
        except ValidationError as fault:
            why = fault.errors()[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"`checkpoint.folder` is mounted in the container: {why}") from None
        return self

    @model_validator(mode="after")
    def _datasets_fit_a_container(self) -> Self:
        """Refuse a dataset that cannot be mounted at its own path.

        The container shows it there, unless a mount of the job shows something else there.
        """
        if self.program.container is None:
            return self
        for dataset in self.datasets:
            try:
                Mount(source=dataset.path)
            except ValidationError as fault:
                why = fault.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"the dataset {dataset.name} is mounted in the container: its path {why}") from None
        return self

    @field_validator("datasets")
    @classmethod
    def _each_dataset_once(cls, datasets: tuple[Dataset, ...]) -> tuple[Dataset, ...]:
        require_each_once(datasets)
        return datasets

    @model_validator(mode="after")
    def _checkpoints_use_secrets_of_the_job(self) -> Self:
        for field in ("credentials", "encryption_keys"):
            name = getattr(self.checkpoint, field)
            if name is not None and name not in self.secrets:
                raise ValueError(f"`checkpoint.{field}` is {name}, which is none of the job's `secrets`")
        return self

    @field_validator("secrets")
    @classmethod
    def _each_secret_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("names a secret twice")
        return names

    @field_validator("secret_env")
    @classmethod
    def _variables_of_secrets_are_the_tenants(cls, env: dict[str, str]) -> dict[str, str]:
        if refused := sorted(filter(_is_refused, env)):
            raise ValueError(f"{refused[0]} is not a variable that a job may set")
        return env

    @model_validator(mode="after")
    def _variables_of_secrets_fit(self) -> Self:
        """Refuse them in a container, whose engine keeps its variables on the host's disk."""
        if self.program.container is not None and self.secret_env:
            raise ValueError("`secret_env`: a container's engine writes variables to a disk; name it in `secrets`")
        if twice := sorted(self.secret_env.keys() & self.program.env.keys()):
            raise ValueError(f"`secret_env`: {twice[0]} is in `program.env` too")
        return self

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Names of all its secrets, for files and for variables."""
        return tuple(dict.fromkeys((*self.secrets, *self.secret_env.values())))

    @field_validator("wall_time_s", "budget_gpu_hours", "stop_grace_s", mode="before")
    @classmethod
    def _whole_numbers_are_numbers_too(cls, value: object) -> object:
        return _whole_as_float(value)
