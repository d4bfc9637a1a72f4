"""Environments of jobs, as the API answers them."""

from typing import Annotated

from typing_extensions import TypedDict

from muster.documents.fields import Moment, OneOf
from muster.domain.job.environment_builds import BuildState


class EnvironmentBuild(TypedDict):
    """An environment that hosts of a job asked for. Jobs of its tenant with the same lock and kind of host share it.

    Or the bundle of a git commit, with its URL and id as ``source``; ``interpreter`` and ``platform`` are empty then.
    ``key``: of recipe, lock file, interpreter and platform. ``interpreter``, ``platform``: for which it is built.
    ``changed_at``: when its state changed last. ``node_name``: the host that builds or built it last; null: none yet.
    ``digest``, ``num_bytes``: of its folder; null: it is not built. ``words``, ``line``: why it could not be built, and
    the line of the lock file; ``log``: the end of the installer's output. They are empty, and ``line`` null, if the
    newest build did not fail.
    """

    key: str
    state: Annotated[str, OneOf(BuildState)]
    interpreter: str
    platform: str
    node_name: str | None
    changed_at: Moment
    digest: str | None
    num_bytes: int | None
    words: str
    line: int | None
    log: str
    source: str | None


class JobEnvironments(TypedDict):
    """``items``: the newest first. Empty: no host has asked yet, or the job has no environment."""

    items: list[EnvironmentBuild]
