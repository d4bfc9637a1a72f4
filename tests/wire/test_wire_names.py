"""Names on the wire are the former ones, so that hosts and servers of the release before read each message."""

import importlib
import pkgutil
from typing import Any

import msgspec
import pytest

import muster.wire
from muster.wire import burn_in, host, pair_probes, repair, training
from muster.wire.meeting import PairwiseOrder

_PREFLIGHT = host.PreflightReport(preflight_id="look-1-job", found="fit", checked=("disk",))
_PAIRWISE = host.AttemptPairwiseOrder(
    attempt_id="att_1",
    order=PairwiseOrder(
        round=1,
        key="k",
        hosts=("one", "two"),
        rank=0,
        address="10.0.0.1",
        port=4000,
        device="cpu",
        gather_bytes=1,
        num_gathers=1,
        timeout_s=1.0,
    ),
)
_PREPARATION = host.Preparation(is_preflight_only=True, has_pairwise_check=True)
_ORDER = host.Order(
    attempt_id="att_1",
    job_id="job_1",
    fence=1,
    node_rank=0,
    num_nodes=1,
    ranks_per_node=1,
    gpus=(),
    launcher="command",
    script=None,
    args=(),
    argv=("true",),
    python=None,
    working_dir=None,
    env={},
    rendezvous=host.Rendezvous(host="127.0.0.1", port=0),
    wall_time_s=None,
    grace_s=1.0,
    kill_grace_s=1.0,
    log_limit_bytes_per_stream=1,
    preparation=_PREPARATION,
    dataset_check_s=3.0,
)

RENAMED: list[tuple[msgspec.Struct, dict[str, str]]] = [
    (_PREFLIGHT, {"preflight_id": "look_id", "checked": "looked_at"}),
    (
        host.HeartbeatRequest(
            protocol=1,
            boot_id="boot-1",
            seq=1,
            attempts=(host.HostAttempt(attempt_id="att_1", fence=1, phase="claimed"),),
            is_woken=True,
            capabilities=("ready",),
            preflights=(_PREFLIGHT,),
        ),
        {"attempts": "held", "is_woken": "rung", "capabilities": "knows", "preflights": "looks"},
    ),
    (
        host.HeartbeatAnswer(
            lease_s=1.0,
            heartbeat_s=1.0,
            preflights=(host.PreflightOrder(order=_ORDER, within_s=1.0),),
            pairwise_orders=(_PAIRWISE,),
        ),
        {"preflights": "looks", "pairwise_orders": "meets"},
    ),
    (
        host.ClaimRequest(protocol=1, boot_id="boot-1", fence=1, nonce="n", capabilities=("ready",)),
        {"capabilities": "knows"},
    ),
    (_PREPARATION, {"is_preflight_only": "only_look", "has_pairwise_check": "meets"}),
    (_ORDER, {"dataset_check_s": "dataset_look_s"}),
    (_PAIRWISE, {"order": "meet"}),
    (host.ReportAnswer(accepted=1, pairwise_orders=(_PAIRWISE,)), {"pairwise_orders": "meets"}),
    (burn_in.BurnInPollAnswer(poll_again_s=3.0), {"poll_again_s": "ask_again_s"}),
    (repair.RepairPollAnswer(poll_again_s=3.0), {"poll_again_s": "ask_again_s"}),
    (pair_probes.PairProbeAnswer(address="10.0.0.1", keys=(), poll_again_s=3.0), {"poll_again_s": "ask_again_s"}),
    (
        repair.RepairReport(protocol=1, boot_id="boot-1", outcome="done", text="reset", is_simulated=True),
        {"text": "words"},
    ),
    (
        training.TrainBatch(protocol=1, fence=1, offset=0, next_offset=1, lines=(), num_skipped=1),
        {"num_skipped": "num_passed_over"},
    ),
]


@pytest.mark.parametrize(("message", "former"), RENAMED, ids=[type(message).__name__ for message, _ in RENAMED])
def test_a_renamed_field_has_its_former_name_on_the_wire(message: msgspec.Struct, former: dict[str, str]) -> None:
    encoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(message))
    for name, wire_name in former.items():
        assert encoded[wire_name] == msgspec.json.decode(msgspec.json.encode(getattr(message, name)))
        assert name not in encoded
    assert msgspec.json.decode(msgspec.json.encode(message), type=type(message)) == message


def test_no_other_field_of_the_wire_has_a_name_of_its_own() -> None:
    renamed = {type(message): former for message, former in RENAMED}
    for found in pkgutil.iter_modules(muster.wire.__path__, "muster.wire."):
        for kind in vars(importlib.import_module(found.name)).values():
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                pairs = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
                assert {name: wire for name, wire in pairs if name != wire} == renamed.get(kind, {}), kind


def test_the_fields_that_the_first_release_lacked_are_named_as_on_the_wire() -> None:
    assert host.TAKEN_IN_HEARTBEATS == ("knows", "looks")
    assert set(host.TAKEN_IN_HEARTBEATS) <= set(host.HeartbeatRequest.__struct_encode_fields__)
    assert host.PAIRWISE_CAPABILITY == "meets"
