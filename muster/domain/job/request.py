"""What a job requests of the scheduler: the small part of its specification, without the program.

The planner, lists and pages read this part in each cycle and page. Program, environment and datasets may be a megabyte
long; they are read only when a host starts the job and when a person asks for that one job.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from muster.domain.exit.rerun_codes import RerunCodes
from muster.domain.job.placement_spec import NodeLabelRule, ParallelLayout, TopologyRule
from muster.domain.job.spec import JobSpec, NodeLossRule, Restart, Shape
from muster.domain.policy.stragglers import StragglerRule
from muster.domain.policy.watch import HangRule
from muster.domain.strict import StrictModel

ENVIRONMENT: Final = "environment"
"""Capability of a host that builds and assembles environments from lock files."""
GIT: Final = "git"
"""Capability of a host that makes bundles of git commits."""
MAX_LISTED_BYTES: Final = 16 << 10
"""The most bytes of a job's request with its labels, as JSON: a cycle reads thousands of requests, a page many labels.

A request without labels has about 700 bytes. 64 labels of 63 bytes a name and 128 a value have 12 KiB.
"""


class JobRequest(StrictModel):
    """A job's name, tier, shape, place and rules.

    ``capabilities``: the ``HOST_CAPABILITIES`` that a host needs for the job: other hosts would ignore these parts.
    ``image``: its container's. ``bundle``: the digest of its program's. ``awaits_bundle``: a host has
    still to make it from a git commit, and sets ``bundle`` then.
    """

    name: str
    tier: str
    shape: Shape
    topology: TopologyRule
    layout: ParallelLayout | None
    node_labels: NodeLabelRule
    restart: Restart
    wall_time_s: float | None
    budget_gpu_hours: float | None
    stop_grace_s: float | None
    on_node_loss: NodeLossRule | None
    on_hang: HangRule | None = None
    on_straggler: StragglerRule | None = None
    rerun_exit_codes: RerunCodes | None = None
    capabilities: tuple[str, ...]
    image: str | None
    bundle: str | None = None
    awaits_bundle: bool = False


_LISTED: Final = (*JobRequest.model_fields.keys() & JobSpec.model_fields.keys(), "labels")


def request_of_spec(spec: JobSpec) -> JobRequest:
    """Return the specification's request."""
    container = spec.program.container
    needed = {
        "bundle": spec.program.has_bundle,
        "container": container is not None,
        "datasets": bool(spec.datasets),
        ENVIRONMENT: spec.program.environment is not None,
        "outputs": bool(spec.outputs),
        "secret_variables": bool(spec.secret_env),
        "secrets": bool(spec.secret_names),
        "venv": spec.program.venv is not None,
    }
    return JobRequest(
        name=spec.name,
        tier=spec.tier,
        shape=spec.shape,
        topology=spec.topology,
        layout=spec.layout,
        node_labels=spec.node_labels,
        restart=spec.restart,
        wall_time_s=spec.wall_time_s,
        budget_gpu_hours=spec.budget_gpu_hours,
        stop_grace_s=spec.stop_grace_s,
        on_node_loss=spec.on_node_loss,
        on_hang=spec.on_hang,
        on_straggler=spec.on_straggler,
        rerun_exit_codes=spec.rerun_exit_codes,
        capabilities=tuple(name for name, is_needed in needed.items() if is_needed),
        image=None if container is None else container.image,
        bundle=spec.program.bundle,
        awaits_bundle=spec.program.git is not None,
    )


def listed_bytes(spec: JobSpec) -> int:
    """Return the bytes of the specification's request and labels as JSON."""
    return len(request_of_spec(spec).model_dump_json().encode()) + len(json.dumps(spec.labels).encode())


def read_request(document: Mapping[str, Any]) -> JobRequest:
    """Return a stored request. A row of release 0.1.0 has the whole specification in its place."""
    if "program" in document:
        return request_of_spec(JobSpec.model_validate(document, strict=False))
    return JobRequest.model_validate(document, strict=False)


def listed_spec(document: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of a specification that lists show, of a stored request and the job's labels."""
    return {name: value for name, value in {**document, "labels": labels}.items() if name in _LISTED}
