"""The limits of requests, tenants and attempts."""

from typing import Annotated

from pydantic import Field

from muster.domain.strict import Name, StrictModel, Text


class TenantLimits(StrictModel):
    """The limits of what one tenant submits, without the tenants below it; a job beyond one is answered with 429.

    The defaults are far beyond a real tenant: in the Philly trace (82,247 jobs of 15 groups) the busiest group had 755
    jobs open at once, and submitted 98 in one minute.
    """

    open_jobs: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        2_000, description="Jobs that have not ended. A cycle of the scheduler reads at most 10,000 pending jobs."
    )
    stored_bytes: Annotated[int, Field(ge=1024, le=1 << 40)] = Field(
        64 << 20,
        description="Bytes of the specifications of these jobs, with programs and environments: on average 32 KiB for "
        "each of 2,000.",
    )
    submissions_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        600, description="Jobs that it may submit at once, and in each minute after that."
    )
    planning_s_per_minute: Annotated[int, Field(ge=1, le=6_000)] = Field(
        5,
        description="Seconds of CPU that its plans and dry runs may take at once, and in each minute after that. 5 are "
        "8 % of an API process, for about 5 plans on 100,000 GPUs and 250 on a small fleet.",
    )


class AttemptLimitPolicy(StrictModel):
    """The limits on what the program of one attempt may store. What is beyond them is counted and left out."""

    events: Annotated[int, Field(ge=100, le=10_000_000)] = Field(
        10_000, description="Events by its program's reports, such as checkpoints, warnings and failed saves."
    )
    events_per_hour: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        1_000,
        description="So many more for each hour since its placement. A checkpoint is charged with six, so this is one "
        "each 22 s.",
    )
    checkpoints: Annotated[int, Field(ge=512, le=1_000_000)] = Field(
        5_000,
        description="Checkpoints that are recorded. Beyond, the oldest whose files were removed are deleted; if none "
        "is, further ones are not recorded. A resume finds them in their store.",
    )
    steps: Annotated[int, Field(ge=1_000, le=100_000_000)] = Field(
        2_000_000, description="Steps, a row each. Later ones are only in the thinned history of each rank."
    )
    log_bytes: Annotated[int, Field(ge=65_536, le=1 << 40)] = Field(
        1 << 30, description="The output of all its ranks together. A line states where it was cut."
    )
    late_reports_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)] = Field(
        86_400.0,
        description="The time after its end for which last lines and reports of hosts that were cut off are stored.",
    )


class LimitPolicy(StrictModel):
    """The limits of one request, page, stream, address and tenant.

    An API process reads `json_body_bytes`, `manifest_bytes`, `json_depth`, `joining_*` and the bounds of connections,
    requests and streams when it starts.
    """

    json_body_bytes: Annotated[int, Field(ge=1024, le=64 << 20)] = Field(
        1 << 20, description="The largest JSON body that is read; a larger one is answered with 413."
    )
    manifest_bytes: Annotated[int, Field(ge=65_536, le=256 << 20)] = Field(
        32 << 20,
        description="The largest manifest of a bundle that is read, about 130 bytes for each of its files. A larger "
        "one is answered with 413.",
    )
    json_depth: Annotated[int, Field(ge=4, le=256)] = Field(
        32, description="Levels of nesting in a JSON body; a deeper one is refused."
    )
    page_items: Annotated[int, Field(ge=1, le=1000)] = Field(
        200, description="Items of a page. Not applied in this release: each list names its own limit in OpenAPI."
    )
    log_bytes_per_stream: Annotated[int, Field(ge=4096, le=1 << 30)] = Field(
        8 << 20,
        description="How much of each stream (stdout, stderr) of each rank of an attempt is kept; of a longer one "
        "its last 16 KiB too.",
    )
    idempotency_hours: Annotated[int, Field(ge=24, le=720)] = Field(
        24, description="For how long an idempotency key is known; a repetition within it has no second effect (I12)."
    )
    joining_burst: Annotated[int, Field(ge=1, le=100_000)] = Field(
        120, description="Requests to enrol and for a node's token that one address may send at once."
    )
    joining_per_s: Annotated[float, Field(ge=0.01, le=10_000, strict=False)] = Field(
        4.0, description="Requests a second that it may send from then on; more are answered with 429."
    )
    connections: Annotated[int, Field(ge=16, le=1_000_000)] = Field(
        32_768, description="Connections that an API process holds open at once; a further one is answered with 503."
    )
    connections_per_address: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        4_096,
        description="Connections of one address among them; a further one is answered with 429. Proxies that "
        "`api_trusted_proxies` names have no such limit.",
    )
    attempt: AttemptLimitPolicy = Field(default_factory=AttemptLimitPolicy)
    requests_per_key: Annotated[int, Field(ge=1, le=1_000)] = Field(
        24, description="Requests of one key or session that are answered at once; a further one is answered with 429."
    )
    streams_per_key: Annotated[int, Field(ge=1, le=100_000)] = Field(
        64, description="Streams of one key or person that an API process holds open at once."
    )
    streams_per_tenant: Annotated[int, Field(ge=1, le=100_000)] = Field(
        256, description="Streams of one tenant that an API process holds open at once."
    )
    tenant: TenantLimits = Field(default_factory=TenantLimits)
    required_labels: dict[Name, tuple[Text, ...]] = Field(
        {},
        max_length=16,
        description="Labels that each new job must have, each with the values that are accepted; an empty list accepts "
        "any value. Costs by `project` or `team` are complete only if each job names one.",
    )
