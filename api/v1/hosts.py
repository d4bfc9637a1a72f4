"""The host protocol over HTTP: a node acts for itself alone, so its id is in its key and in no path."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from api.bodies import wire_body
from api.dependencies import dependencies_of
from api.permissions import requires_of_host
from api.reading import require_id
from api.secret_keys import keys_of
from api.wire_answers import answered, answered_after, taking
from control.hosts import bundles, environments, host_reports, protocol, secret_delivery
from control.training import training
from control.watch import line_intake
from muster.domain.errors import NoSuchBundleError, SecretKeyError, StaleFenceError
from muster.domain.ids import AttemptId
from muster.domain.principals import Permission, Principal
from muster.wire.content import (
    BundleReport,
    BundleReportAnswer,
    DownloadsAnswer,
    DownloadsRequest,
    EnvironmentAnswer,
    EnvironmentFailure,
    EnvironmentFailureAnswer,
    EnvironmentRequest,
    LostObject,
    LostObjectAnswer,
)
from muster.wire.host import (
    ClaimAnswer,
    ClaimRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    LogAnswer,
    LogBatch,
    ReportAnswer,
    ReportBatch,
    SecretsAnswer,
    SecretsRequest,
)
from muster.wire.training import FindingsAnswer, FindingsBatch, TrainAnswer, TrainBatch

router = APIRouter(prefix="/hosts/self", tags=["hosts"])
EnvironmentKey = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
Node = Annotated[Principal, requires_of_host(Permission.HOST_REPORT)]


@taking(router, "/heartbeat", HeartbeatRequest, HeartbeatAnswer)
async def heartbeat(
    request: Request, node: Node, message: Annotated[HeartbeatRequest, wire_body(HeartbeatRequest)]
) -> Response:
    """Renew leases; the answer lists what to claim, to stop and to forget."""
    return await answered(request, node, protocol.HEARTBEAT, lambda unit: protocol.heartbeat(unit, message), quiet=True)


@taking(router, "/attempts/{attempt_id}/claim", ClaimRequest, ClaimAnswer)
async def claim(
    attempt_id: str, request: Request, node: Node, message: Annotated[ClaimRequest, wire_body(ClaimRequest)]
) -> Response:
    """Claim before start: granted with the order, or refused with the reason."""
    found_id = AttemptId(require_id("attempt", attempt_id))
    return await answered(request, node, protocol.CLAIM, lambda unit: protocol.claim(unit, found_id, message))


@taking(router, "/attempts/{attempt_id}/secrets", SecretsRequest, SecretsAnswer, SecretKeyError, StaleFenceError)
async def read_secrets(
    attempt_id: str, request: Request, node: Node, message: Annotated[SecretsRequest, wire_body(SecretsRequest)]
) -> Response:
    """Read the secrets of a claimed part, sealed to the question's own key; each read is audited."""
    found_id, keys = AttemptId(require_id("attempt", attempt_id)), keys_of(request)
    return await answered_after(
        request,
        node,
        secret_delivery.READ,
        lambda unit: secret_delivery.read_for_host(unit, found_id, message),
        lambda delivery: delivery.sealed(keys),
    )


@taking(router, "/attempts/{attempt_id}/reports", ReportBatch, ReportAnswer)
async def report_attempt(
    attempt_id: str, request: Request, node: Node, message: Annotated[ReportBatch, wire_body(ReportBatch)]
) -> Response:
    """Report facts about the host's part; a repeated fact has no effect."""
    found_id = AttemptId(require_id("attempt", attempt_id))
    return await answered(request, node, host_reports.REPORT, lambda unit: host_reports.report(unit, found_id, message))


@taking(router, "/attempts/{attempt_id}/logs", LogBatch, LogAnswer)
async def store_logs(
    attempt_id: str, request: Request, node: Node, message: Annotated[LogBatch, wire_body(LogBatch)]
) -> Response:
    """Store pieces of logs, keyed by their offsets."""
    found_id = AttemptId(require_id("attempt", attempt_id))
    return await answered(
        request, node, protocol.LOGS, lambda unit: protocol.store_logs(unit, found_id, message), quiet=True
    )


@taking(router, "/attempts/{attempt_id}/training", TrainBatch, TrainAnswer)
async def take_training(
    attempt_id: str, request: Request, node: Node, message: Annotated[TrainBatch, wire_body(TrainBatch)]
) -> Response:
    """Store the ranks' reports of their training, keyed by the offset in the host's file."""
    found_id = AttemptId(require_id("attempt", attempt_id))
    return await answered(
        request, node, training.RECORD, lambda unit: training.take(unit, found_id, message), quiet=True
    )


@taking(router, "/attempts/{attempt_id}/findings", FindingsBatch, FindingsAnswer)
async def take_findings(
    attempt_id: str, request: Request, node: Node, message: Annotated[FindingsBatch, wire_body(FindingsBatch)]
) -> Response:
    """Store lines about faults in the ranks' output, keyed by the offset in the host's file."""
    found_id = AttemptId(require_id("attempt", attempt_id))
    return await answered(
        request, node, line_intake.RECORD, lambda unit: line_intake.take(unit, found_id, message), quiet=True
    )


@taking(router, "/attempts/{attempt_id}/downloads", DownloadsRequest, DownloadsAnswer)
async def sign_downloads(
    attempt_id: str, request: Request, node: Node, message: Annotated[DownloadsRequest, wire_body(DownloadsRequest)]
) -> Response:
    """Sign downloads of the bundle of an attempt, or of a preflight, that this host has now."""
    store = dependencies_of(request).store
    return await answered(
        request,
        node,
        bundles.DOWNLOADS,
        lambda unit: bundles.downloads(unit, attempt_id, message, store),
        quiet=True,
    )


@taking(
    router,
    "/attempts/{attempt_id}/lost-objects",
    LostObject,
    LostObjectAnswer,
    StaleFenceError,
    NoSuchBundleError,
)
async def report_lost_object(
    attempt_id: str, request: Request, node: Node, message: Annotated[LostObject, wire_body(LostObject)]
) -> Response:
    """Report an object that this host cannot read from the store; the answer has what the control plane read itself."""
    return await answered(
        request, node, bundles.LOST, lambda unit: bundles.report_lost(unit, attempt_id, message), quiet=True
    )


@taking(
    router,
    "/attempts/{attempt_id}/environments/{environment_key}",
    EnvironmentRequest,
    EnvironmentAnswer,
    StaleFenceError,
    NoSuchBundleError,
    SecretKeyError,
)
async def ask_environment(
    attempt_id: str,
    environment_key: EnvironmentKey,
    request: Request,
    node: Node,
    message: Annotated[EnvironmentRequest, wire_body(EnvironmentRequest)],
) -> Response:
    """Return how this host gets an environment: built, to build, to wait for, or failed. A build's claim is renewed.

    The same of a bundle of a git commit, by its key; with the secret of its repository, sealed to the question's key.
    """
    return await answered_after(
        request,
        node,
        environments.ASK,
        lambda unit: environments.ask(unit, attempt_id, environment_key, message),
        lambda found: found.sealed(lambda: keys_of(request)),
        quiet=True,
    )


@taking(
    router,
    "/attempts/{attempt_id}/environments/{environment_key}/failed",
    EnvironmentFailure,
    EnvironmentFailureAnswer,
    StaleFenceError,
)
async def fail_environment(
    attempt_id: str,
    environment_key: EnvironmentKey,
    request: Request,
    node: Node,
    message: Annotated[EnvironmentFailure, wire_body(EnvironmentFailure)],
) -> Response:
    """Store why this part's build failed: permanently, or so that another part may build it."""
    return await answered(
        request,
        node,
        environments.FAIL,
        lambda unit: environments.fail(unit, attempt_id, environment_key, message),
        quiet=True,
    )


@taking(router, "/bundles", BundleReport, BundleReportAnswer)
async def report_bundles(
    request: Request, node: Node, message: Annotated[BundleReport, wire_body(BundleReport)]
) -> Response:
    """Store which bundles this host holds whole."""
    return await answered(request, node, bundles.HOLD, lambda unit: bundles.hold(unit, message), quiet=True)
