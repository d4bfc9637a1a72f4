"""Environment variables that the launcher sets for a rank: torchrun's and Muster's own, each with its default.

| variable | meaning | without it |
|---|---|---|
| ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT`` | torchrun's; without ``RANK``, the rank of Open MPI, MPICH or Slurm (``foreign_launchers``) | one rank, no process group |
| ``MUSTER_ATTEMPT_ID`` | written into manifests | empty |
| ``MUSTER_FENCE`` | grows with each attempt; an older one writes nothing | the next number in the folder |
| ``MUSTER_CHECKPOINT_DIR`` | the job's own folder, visible on all its hosts | no checkpoint is saved |
| ``MUSTER_CHECKPOINT_STORE`` | an object store instead of the folder: ``s3://bucket/prefix``, the job's own; ``bucket`` describes endpoint and credentials | the folder |
| ``MUSTER_CHECKPOINT_CREDENTIALS_FILE`` | credentials for that store, in the form of ~/.aws/credentials: a path, or the name of a secret of the job | as boto3 finds them |
| ``MUSTER_CHECKPOINT_KEY_FILE`` | keys that encrypt checkpoints (``keys``): a path, or the name of a secret of the job | checkpoints are not encrypted |
| ``MUSTER_SECRETS_DIR`` | the folder of the job's secrets | the job has none |
| ``MUSTER_TRAIN_SOCKET`` | the supervisor's socket (``wire``) | no messages are sent or received |
| ``MUSTER_WATCH_SOCKET`` | the supervisor's socket for progress and stacks (``watch.sensor``) | no progress is reported |
| ``MUSTER_TAKES_OUTCOME`` | 1: the supervisor judges by the outcome as well, so a program that ends with 0 keeps that code | a failed last save turns 0 into 74 |
| ``MUSTER_STOP_NOTICE_S`` | seconds from SIGTERM to the kill if no ``stop`` names a deadline | no limit |
| ``MUSTER_RESUME`` | JSON, all fields optional: ``generation`` (try this one, then older ones), ``may_be_newer`` (``generation`` is the newest that was reported: a newer one is tried first), ``refuse`` (never these), ``not_after_unix_ms`` (nothing committed later), ``tainted_since_unix_ms`` (by fence: nothing that this attempt committed from then on), ``overtaken_since_unix_ms`` (likewise), ``good_after_steps`` (20), ``hold_s`` (600), ``pinned`` (never removed) | the newest that verifies |
| ``MUSTER_CHECKPOINT_INTERVAL`` | for ``checkpoint_every="auto"``: JSON, all fields optional: ``failures_per_gpu_hour``, ``num_gpus``, ``min_s``, ``max_s`` | ``interval``'s prior, as many GPUs as ranks, 30, 3600 |
| ``MUSTER_SCRUB`` | how stored checkpoints are read again (``scrub``): JSON, all fields optional: ``interval_s`` (0: never), ``bytes_per_s`` | each day, 50 MB/s |
| ``MUSTER_LAST_SAVE_RETRY_S`` | for how long the last save of a program is tried again (``last_save``) | 300 |
| ``MUSTER_ACCUMULATION`` | the factor by which each batch is cut into more pieces, because an earlier attempt ran out of GPU memory | 1 |
| ``MUSTER_NODES_RANGE`` | the fewest and the most hosts that the job may have: ``1-4`` | their number does not change |
| ``MUSTER_JOB_ID`` | gives a job one run in each outlet | a new run each time |
| ``MUSTER_OUTLETS`` | names with commas: outlets that also receive the figures (``outlets``) | none, unless the program names some |
| ``MUSTER_SPEC_SHA256`` | the hash of the job's specification, for manifests (``lineage``) | null |
| ``MUSTER_BUNDLE`` | the digest of the job's bundle, for manifests (``lineage``) | null |
| ``MUSTER_SCRATCH_DIR``, ``MUSTER_SCRATCH_BYTES`` | the folder for copies of datasets on this host, and their most bytes (``datasets``) | ``/var/tmp``, and no folder if the value is empty; the disk's size |
| ``MUSTER_ON_VALUE_FAULT`` | the reaction to a value that is not finite, whatever the program says (``on_fault``) | as the program says |
| ``MUSTER_RERUN`` | the order about re-runs of suspect steps (``reruns.orders``) | none elsewhere than in place |
| ``MUSTER_TRAIN_SYNCHRONOUS`` | 1: each checkpoint is committed before the next step, whatever the program says | as the program says |
| ``MUSTER_TRAIN_CHECK`` | a check of the program records its steps (``recorder``) | none |
| ``MUSTER_TRAIN_FAULTS``, ``MUSTER_TRAIN_FAULTS_SEED`` | faults on purpose (``faults``) | none |
"""  # noqa: E501  # a table's row is one line

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.interval import IntervalRule
from muster.train.checkpoint.scrub import ScrubRule
from muster.train.checkpoint.storage.places import S3Place, is_s3
from muster.train.parallel.foreign_launchers import require_rank
from muster.train.reruns.orders import RerunOrder
from muster.train.values.on_fault import ValueFaultRule

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_FENCE = 20


@dataclass(frozen=True)
class Resume:
    """Rules from the control plane for which generations may be used.

    ``good_after_steps``: healthy steps after which a verified checkpoint counts as good; the newest good one is never
    removed. ``hold_s``: how late a fault may be found; the newest checkpoint that is older is retained too.
    ``may_be_newer``: ``generation`` is the newest that the control plane received. A newer one, committed by an attempt
    that died before it could report it, is used first. ``tainted_since_unix_ms``: by fence, the time from which results
    of that attempt may be false, reported or not. ``overtaken_since_unix_ms``: by fence, the time from which a newer
    attempt trained. That attempt has not seen any later checkpoint of the older one; to continue from such a checkpoint
    would undo the newer attempt's work. ``pinned`` None: the control plane states nothing about pins.
    """

    generation: str | None = None
    refused: frozenset[str] = field(default_factory=frozenset)
    not_after_unix_ms: int | None = None
    good_after_steps: int = 20
    hold_s: float = 600.0
    pinned: frozenset[str] | None = None
    may_be_newer: bool = False
    tainted_since_unix_ms: Mapping[int, int] = field(default_factory=dict)
    overtaken_since_unix_ms: Mapping[int, int] = field(default_factory=dict)

    def is_tainted(self, fence: int, committed_at_unix_ms: int) -> bool:
        since = self.tainted_since_unix_ms.get(fence)
        return since is not None and committed_at_unix_ms >= since

    def is_overtaken(self, fence: int, committed_at_unix_ms: int) -> bool:
        since = self.overtaken_since_unix_ms.get(fence)
        return since is not None and committed_at_unix_ms >= since


@dataclass(frozen=True)
class Environment:
    """Environment of one rank, read from its variables.

    ``fence`` None: no fence was assigned. ``stop_notice_s`` None: the signal to stop leaves all the time needed.
    """

    rank: int = 0
    world_size: int = 1
    is_launched: bool = False
    attempt_id: str = ""
    fence: int | None = None
    socket_path: str | None = None
    takes_outcome: bool = False
    checkpoint_dir: Path | None = None
    checkpoint_store: S3Place | None = None
    checkpoint_credentials_file: Path | None = None
    checkpoint_key_file: Path | None = None
    stop_notice_s: float | None = None
    resume: Resume = field(default_factory=Resume)
    interval: IntervalRule = field(default_factory=IntervalRule)
    scrub: ScrubRule = field(default_factory=ScrubRule)
    last_save_retry_s: float = 300.0
    accumulation: int = 1
    is_synchronous: bool = False
    spec_sha256: str | None = None
    bundle: str | None = None
    nodes_range: tuple[int, int] | None = None
    job_id: str = ""
    outlets: tuple[str, ...] = ()
    on_value_fault: ValueFaultRule | None = None
    rerun: RerunOrder | None = None
    check: str = ""
    faults: str = ""
    faults_seed: int = 0

    @property
    def checkpoint_place(self) -> Path | S3Place | None:
        """The store if there is one, else the folder, which a host names for every job."""
        return self.checkpoint_store or self.checkpoint_dir

    @classmethod
    def of(cls, environ: Mapping[str, str] | None = None) -> Environment:
        """Read the environment of a rank from ``environ``. Raises ValueError that names the variable if it cannot be
        read.

        ``environ`` None: the process's own variables.
        """
        environ = os.environ if environ is None else environ
        require_rank(environ)
        retry_s = _seconds(environ, "MUSTER_LAST_SAVE_RETRY_S")
        return cls(
            rank=_number(environ, "RANK") or 0,
            world_size=_number(environ, "WORLD_SIZE") or 1,
            is_launched=all(name in environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")),
            attempt_id=environ.get("MUSTER_ATTEMPT_ID", ""),
            fence=_number(environ, "MUSTER_FENCE"),
            socket_path=environ.get("MUSTER_TRAIN_SOCKET") or None,
            takes_outcome=environ.get("MUSTER_TAKES_OUTCOME") == "1",
            checkpoint_dir=_folder(environ, "MUSTER_CHECKPOINT_DIR"),
            checkpoint_store=_store(environ, "MUSTER_CHECKPOINT_STORE"),
            checkpoint_credentials_file=_file(environ, "MUSTER_CHECKPOINT_CREDENTIALS_FILE"),
            checkpoint_key_file=_file(environ, "MUSTER_CHECKPOINT_KEY_FILE"),
            stop_notice_s=_seconds(environ, "MUSTER_STOP_NOTICE_S"),
            resume=_resume(environ.get("MUSTER_RESUME")),
            interval=_interval(environ.get("MUSTER_CHECKPOINT_INTERVAL")),
            scrub=_scrub(environ.get("MUSTER_SCRUB")),
            last_save_retry_s=cls.last_save_retry_s if retry_s is None else retry_s,
            accumulation=_number(environ, "MUSTER_ACCUMULATION") or 1,
            is_synchronous=bool(_number(environ, "MUSTER_TRAIN_SYNCHRONOUS")),
            nodes_range=_range(environ, "MUSTER_NODES_RANGE"),
            job_id=environ.get("MUSTER_JOB_ID", ""),
            outlets=_names(environ.get("MUSTER_OUTLETS", "")),
            spec_sha256=environ.get("MUSTER_SPEC_SHA256") or None,
            bundle=environ.get("MUSTER_BUNDLE") or None,
            on_value_fault=_value_fault_rule(environ, "MUSTER_ON_VALUE_FAULT"),
            rerun=RerunOrder.of(environ.get("MUSTER_RERUN")),
            check=environ.get("MUSTER_TRAIN_CHECK", ""),
            faults=environ.get("MUSTER_TRAIN_FAULTS", ""),
            faults_seed=_number(environ, "MUSTER_TRAIN_FAULTS_SEED") or 0,
        )


def _value_fault_rule(environ: Mapping[str, str], name: str) -> ValueFaultRule | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        return ValueFaultRule.of(text)
    except ValueError as fault:
        raise ValueError(f"{name}: {fault}") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _folder(environ: Mapping[str, str], name: str) -> Path | None:
    text = environ.get(name)
    if not text:
        return None
    if is_s3(text):
        raise ValueError(f"{name}={text!r}: must be a folder; an object store is MUSTER_CHECKPOINT_STORE")
    return Path(text)


def _store(environ: Mapping[str, str], name: str) -> S3Place | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        return S3Place.of(text)
    except ValueError as fault:
        raise ValueError(f"{name}: {fault}") from None


def _file(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the path in a variable, which holds a path or the name of one of the job's secrets."""
    text = environ.get(name)
    if not text:
        return None
    if "/" in text:
        return Path(text)
    folder = environ.get("MUSTER_SECRETS_DIR")
    if not folder:
        raise ValueError(f"{name}={text!r}: names a secret, and this job has none (MUSTER_SECRETS_DIR is not set)")
    return Path(folder) / text


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r}: must be a whole number, 0 or more")
    return int(text)


def _range(environ: Mapping[str, str], name: str) -> tuple[int, int] | None:
    text = environ.get(name)
    if not text:
        return None
    fewest, dash, most = text.partition("-")
    if not (dash and fewest.isdecimal() and most.isdecimal() and 1 <= int(fewest) <= int(most)):
        raise ValueError(f"{name}={text!r}: must be the fewest and the most hosts, as in 1-4")
    return int(fewest), int(most)


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name}={text!r}: must be seconds, 0 or more")
    return seconds


def _resume(text: str | None) -> Resume:
    document = _object("MUSTER_RESUME", text) if text else {}
    refused = document.get("refuse") or ()
    wanted = document.get("generation") or None
    limit = document.get("not_after_unix_ms")
    steps = document.get("good_after_steps")
    hold_s = document.get("hold_s")
    pinned = document.get("pinned")
    may_be_newer = document.get("may_be_newer") or False
    tainted = document.get("tainted_since_unix_ms") or {}
    overtaken = document.get("overtaken_since_unix_ms") or {}
    fits = (
        _is_words(refused)
        and (pinned is None or _is_words(pinned))
        and (wanted is None or (isinstance(wanted, str) and Generation.named(wanted) is not None))
        and (limit is None or isinstance(limit, int))
        and (steps is None or isinstance(steps, int))
        and (hold_s is None or isinstance(hold_s, (int, float)))
        and isinstance(may_be_newer, bool)
        and _is_by_fence(tainted)
        and _is_by_fence(overtaken)
    )
    if not fits:
        raise ValueError(
            f"MUSTER_RESUME={text!r}: a field is of another kind than muster.train.runtime.environment says"
        )
    return Resume(
        wanted,
        frozenset(refused),
        limit,
        Resume.good_after_steps if steps is None else steps,
        Resume.hold_s if hold_s is None else float(hold_s),
        None if pinned is None else frozenset(pinned),
        may_be_newer,
        {int(fence): since for fence, since in tainted.items()},
        {int(fence): since for fence, since in overtaken.items()},
    )


def _is_by_fence(value: object) -> bool:
    return isinstance(value, dict) and all(
        fence.isascii() and fence.isdigit() and len(fence) <= _LONGEST_FENCE and isinstance(since, int)
        for fence, since in value.items()
    )


def _is_words(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _scrub(text: str | None) -> ScrubRule:
    name = "MUSTER_SCRUB"
    document = _object(name, text) if text else {}
    known = {each.name: document[each.name] for each in fields(ScrubRule) if document.get(each.name) is not None}
    for field_name, value in known.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"{name}={text!r}: {field_name} must be a number, 0 or more")
    rule = ScrubRule(**known)
    if rule.bytes_per_s <= 0:
        raise ValueError(f"{name}={text!r}: bytes_per_s must be above 0; interval_s 0 turns it off")
    return rule


def _interval(text: str | None) -> IntervalRule:
    name = "MUSTER_CHECKPOINT_INTERVAL"
    document = _object(name, text) if text else {}
    known = {each.name: document[each.name] for each in fields(IntervalRule) if document.get(each.name) is not None}
    for field_name, value in known.items():
        kinds = int if field_name == "num_gpus" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
            raise ValueError(f"{name}={text!r}: {field_name} must be a number above 0")
    rule = IntervalRule(**known)
    if rule.max_s < rule.min_s:
        raise ValueError(f"{name}={text!r}: max_s must not be less than min_s")
    return rule


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError(  # noqa: TRY004  # the variable's value is wrong, not a type in the program
            f"{name}={text!r}: must be a JSON object"
        )
    return document
