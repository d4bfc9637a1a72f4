"""Enrolment: a host with a join token becomes a node, known from then on by its agent's own key."""

import hashlib
from collections.abc import Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.fleet import inventory
from control.fleet.gpu_claims import GpuClaimedError, report_claim
from control.fleet.inventory import GpuInventory
from control.hosts import join_tokens
from control.hosts.node_tokens import revoke_tokens
from muster.db.models import Gpu, Node, NodeIdentity
from muster.domain.errors import ConflictError, UpgradeRequiredError
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.principals import Permission
from muster.wire.enrolment import ENROLMENT_PROTOCOL, EnrolAnswer, EnrolRequest, GpuClaim

ENROL: Final = declare_action("node.enrol_identity")


def enrol(
    units: UnitOfWorkFactory, request: EnrolRequest, *, address: str | None, request_id: str | None
) -> EnrolAnswer:
    """Exchange a join token for a node. The same host may repeat its request: the answer may have been lost.

    Raises:
        UnauthenticatedError: no such token, or its time is over.
        ForbiddenError: the token is for a host of another name.
        ConflictError: the token was used before, a GPU belongs to another node, or the key does.
    """
    if request.protocol != ENROLMENT_PROTOCOL:
        message = f"protocol {request.protocol} is not supported; this server supports {ENROLMENT_PROTOCOL}"
        raise UpgradeRequiredError(message, spoken=ENROLMENT_PROTOCOL)
    principal, prefix = join_tokens.joining_principal(units, request.token, address=address, request_id=request_id)

    def once() -> NodeId:
        try:
            with units.begin(principal, ENROL) as unit:
                return enrol_host(unit, prefix, request, seen_address=address or "")
        except IntegrityError as error:
            message = "another host enrolled with the same name, GPU or key at the same moment"
            raise ConflictError(message, suggestion="Send the request again: the answer then names it.") from error

    try:
        return EnrolAnswer(node_id=retrying(once))
    except GpuClaimedError as claimed:
        report_claim(units, principal, claimed, request.host_name)
        raise


def enrol_host(unit: UnitOfWork, prefix: str, request: EnrolRequest, *, seen_address: str) -> NodeId:
    """Enrol the host within a unit. If that is refused, the token stays valid."""
    unit.principal.require(Permission.NODE_WRITE)
    try:
        token = join_tokens.use(unit, prefix, request.host_name)
    except join_tokens.TokenUsedError:
        repeated = _node_of_repetition(unit, prefix, request)
        if repeated is None:
            raise
        _keep_ports(unit, repeated, request)
        return repeated
    _require_free(unit, request)
    gpus = [_inventory(claim, is_simulated=request.is_simulated) for claim in request.gpus]
    node_id = inventory.enrol_node(
        unit,
        request.host_name,
        gpus,
        address=token.address or seen_address,
        rack=token.rack,
        is_simulated=request.is_simulated,
    )
    _add_missing(unit, node_id, gpus)
    ports = sorted(set(request.rdma_ports))
    unit.session.get_one(Node, node_id).rdma_ports = ports
    _write_identity(unit, node_id, prefix, request.public_key)
    fingerprint = hashlib.sha256(request.public_key).hexdigest()[:16]
    detail = {
        "name": request.host_name,
        "key_fingerprint": fingerprint,
        "num_gpus": len(gpus),
        "rdma_ports": ports,
        "join_token": prefix,
    }
    unit.emit("node.identity_enrolled", "node", node_id, payload=detail)
    unit.audit("node.enrol_identity", "node", node_id, detail=detail)
    return node_id


def _keep_ports(unit: UnitOfWork, node_id: NodeId, request: EnrolRequest) -> None:
    """Store the ports of the newest request: its first answer never arrived, and a driver may have loaded since."""
    node, ports = unit.session.get_one(Node, node_id), sorted(set(request.rdma_ports))
    if list(node.rdma_ports) == ports:
        return
    detail = {"rdma_ports": ports, "were": list(node.rdma_ports)}
    node.rdma_ports = ports
    unit.emit("node.ports_enrolled", "node", node_id, payload=detail)
    unit.audit("node.enrol_ports", "node", node_id, detail=detail)


def _node_of_repetition(unit: UnitOfWork, prefix: str, request: EnrolRequest) -> NodeId | None:
    return unit.session.scalar(
        select(NodeIdentity.node_id)
        .join(Node, Node.id == NodeIdentity.node_id)
        .where(
            NodeIdentity.joined_by == prefix,
            NodeIdentity.public_key == request.public_key,
            Node.name == request.host_name,
        )
    )


def _require_free(unit: UnitOfWork, request: EnrolRequest) -> None:
    """Check that neither a GPU nor the key belongs to another node."""
    uuids = [claim.uuid for claim in request.gpus]
    if len(set(uuids)) != len(uuids) or len({claim.slot_index for claim in request.gpus}) != len(uuids):
        raise ConflictError("the inventory has a GPU or a slot twice")
    taken = unit.session.execute(
        select(Gpu.uuid, Node.name)
        .join(Node, Node.id == Gpu.node_id)
        .where(Gpu.uuid.in_(uuids), Node.name != request.host_name)
        .order_by(Gpu.uuid)
    ).all()
    if taken:
        words = ", ".join(f"{row.uuid} belongs to node {row.name}" for row in taken)
        uuids = [row[0] for row in taken]
        raise GpuClaimedError(
            words,
            suggestion="Retire the GPUs there, or check whether a disk was cloned.",
            gpu_uuids=uuids,
            gpus=uuids,
        )
    owner = unit.session.scalar(
        select(Node.name)
        .join(NodeIdentity, NodeIdentity.node_id == Node.id)
        .where(NodeIdentity.public_key == request.public_key, Node.name != request.host_name)
    )
    if owner is not None:
        raise ConflictError(
            f"this node key belongs to node {owner}: the disk was cloned",
            suggestion="Delete node_key and identity.json in the agent's state folder, and enrol again.",
            reason="key_taken",
        )


def _inventory(claim: GpuClaim, *, is_simulated: bool) -> GpuInventory:
    return GpuInventory(
        uuid=GpuUuid(claim.uuid),
        slot_index=claim.slot_index,
        model=claim.model,
        memory_bytes=claim.memory_bytes,
        compute_capability=claim.compute_capability,
        driver_version=claim.driver_version,
        serial=claim.serial or None,
        is_simulated=is_simulated,
    )


def _add_missing(unit: UnitOfWork, node_id: NodeId, gpus: Sequence[GpuInventory]) -> None:
    """Add the new GPUs of a host that enrols again; GPUs that it no longer names stay, to be retired by a person."""
    known = unit.session.execute(select(Gpu.uuid, Gpu.slot_index).where(Gpu.node_id == node_id)).all()
    uuids, slots = {row.uuid for row in known}, {row.slot_index: row.uuid for row in known}
    missing = [gpu for gpu in gpus if gpu.uuid not in uuids]
    for gpu in missing:
        if gpu.slot_index in slots:
            raise ConflictError(
                f"slot {gpu.slot_index} of this node holds {slots[gpu.slot_index]}, and {gpu.uuid} is claimed there",
                suggestion="Retire the GPU that was taken out first.",
            )
    if missing:
        inventory.add_gpus(unit, node_id, missing)
        node = unit.session.get_one(Node, node_id)
        node.num_gpus = len(known) + len(missing)
        payload = {"num_gpus": node.num_gpus, "gpus": [gpu.uuid for gpu in missing]}
        unit.emit("node.gpus_added", "node", node_id, payload=payload)


def _write_identity(unit: UnitOfWork, node_id: NodeId, prefix: str, public_key: bytes) -> None:
    """Replace the old key by the new one, and revoke tokens issued to the old one."""
    identity = unit.session.get(NodeIdentity, node_id, with_for_update=True)
    if identity is None:
        identity = NodeIdentity(node_id=node_id, public_key=public_key, enrolled_at=unit.now, joined_by=prefix)
        unit.session.add(identity)
    identity.public_key = public_key
    identity.enrolled_at = unit.now
    identity.joined_by = prefix
    identity.instance = identity.boot_id = identity.cloned_at = None
    identity.past_instances = []
    revoke_tokens(unit, node_id)
    unit.session.flush()
