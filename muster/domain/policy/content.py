"""The limits of content that tenants store, and for how long it is kept."""

from typing import Annotated

from pydantic import AfterValidator, Field

from muster.domain.job.git_spec import git_host
from muster.domain.policy.quantities import Days
from muster.domain.strict import StrictModel

GitHost = Annotated[str, AfterValidator(git_host), Field(max_length=255)]


class ContentPolicy(StrictModel):
    """Limits and retention of bundles, outputs and environments. `limits.manifest_bytes` bounds the manifest of one."""

    bundle_bytes: Annotated[int, Field(ge=1, le=1 << 40)] = Field(
        2 << 30, description="Bytes of all files of one bundle. Code and small data fit; data sets belong elsewhere."
    )
    bundle_files: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        200_000, description="Files of one bundle. Each costs a host a few system calls at every start."
    )
    git_hosts: Annotated[tuple[GitHost, ...], Field(max_length=64, strict=False)] = Field(
        (),
        description="The hosts of git repositories that jobs may name: `HOST` or `HOST:PORT`, for https and ssh. A "
        "whole address that begins with `http:` or `file:` allows what no network protects. Empty: none may be named.",
    )
    outputs_bytes: Annotated[int, Field(ge=1, le=1 << 50)] = Field(
        64 << 30, description="Bytes of all files that a host collects at one end of an attempt, or at one checkpoint."
    )
    outputs_files: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        200_000, description="Files that a host collects at once."
    )
    outputs_keep_days: Days = Field(
        90,
        description="The outputs of a job are deleted so long after its end, with its checkpoints' outputs.",
    )
    outputs_upload_hours: Annotated[int, Field(ge=1, le=720)] = Field(
        24, description="For so long after the end of an attempt its hosts may upload its outputs."
    )
    environment_bytes: Annotated[int, Field(ge=1, le=1 << 40)] = Field(
        32 << 30, description="Bytes of all files of one environment that a host has built by a lock file."
    )
    environment_files: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        500_000, description="Files of one environment."
    )
    tenant_bytes: Annotated[int, Field(ge=1, le=1 << 60)] = Field(
        64 << 30,
        description="Bytes that one tenant may store, each chunk counted once however many folders have it. A folder "
        "beyond it is answered with 429.",
    )
    unused_days: Days = Field(
        30,
        description="A bundle is deleted after so long without a submission or a running job, unless a kept "
        "checkpoint is of a job that used it.",
    )
    upload_hours: Annotated[int, Field(ge=1, le=720)] = Field(
        24, description="An upload that makes no progress for so long is given up."
    )
    idle_hours: Annotated[int, Field(ge=2, le=720)] = Field(
        24,
        description="A chunk that no bundle has any more is deleted from the store after so long. No address for its "
        "upload is valid any more by then.",
    )
