"""The rule by which ``muster simulate`` plays a trace, and what its jobs state of their run times, as options say."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.policy_files import policy_of_file
from muster.cli.sim.simulate_options import QueueRule
from muster.domain.ids import TenantId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from scheduler.quota.tenancy import Member, Quota, Tenancy
from simulator.traces.by_policy import RunTimes
from simulator.traces.jobs import TraceJob

MOST_PADDING: Final = 1000.0
_QUOTA_FORM: Final = "--quota is TENANT/TIER=GUARANTEED or TENANT/TIER=GUARANTEED:CEILING, in whole GPUs"
_SHARE_FORM: Final = "--share is TENANT=WEIGHT, a number above 0"


@dataclass(frozen=True, slots=True)
class Fleet:
    nodes: int
    gpus_per_node: int
    nodes_per_rack: int | None


@dataclass(frozen=True, slots=True)
class PlayedRule:
    """A rule by name, or a policy from the file of this name. ``tenancy``: for a policy."""

    name: str
    policy: Policy | None = None
    tenancy: Tenancy = field(default_factory=Tenancy)


@dataclass(frozen=True, slots=True)
class StatedWallTimes:
    """Wall times: ``factor`` times the duration, or none with ``is_unknown``. Neither: estimates, and no wall time."""

    name: str
    factor: float | None = None
    is_unknown: bool = False

    def run_times(self, jobs: Sequence[TraceJob], estimates_s: Sequence[float]) -> RunTimes:
        none: list[float | None] = [None] * len(jobs)
        if self.factor is not None:
            return RunTimes([job.duration_s * self.factor for job in jobs], none)
        return RunTimes(none, none if self.is_unknown else list(estimates_s))

    def as_estimates(self, jobs: Sequence[TraceJob], estimates_s: Sequence[float]) -> list[float]:
        """Return the expected run time of each job, for a rule by name: unknown ones as the policy expects them."""
        if self.is_unknown:
            return [DEFAULT_POLICY.queue.expected_run_s] * len(jobs)
        factor = self.factor
        return list(estimates_s) if factor is None else [job.duration_s * factor for job in jobs]


def stated_wall_times(text: str | None, estimate_error: float) -> StatedWallTimes:
    """Return what the option says. Raises CommandError: it is none of its forms, or --estimate-error is given, too."""
    if text is None:
        return StatedWallTimes("estimated")
    if estimate_error != 1:
        raise CommandError(
            "--wall-times and --estimate-error both say what is known of run times", "Give one of them.", Exit.USAGE
        )
    if text == "unknown":
        return StatedWallTimes(text, is_unknown=True)
    factor = 1.0 if text == "exact" else _number(text)
    if not 1 <= factor <= MOST_PADDING:
        words = f"--wall-times {text!r}: must be exact, unknown, or a factor from 1 to {MOST_PADDING:g}"
        raise CommandError(words, "For example 2: jobs state twice as long as they take.", Exit.USAGE)
    return StatedWallTimes(text, factor)


def rule_of(text: str, quotas: Sequence[str], shares: Sequence[str], *, fails: bool) -> PlayedRule:
    """Return the rule, or the policy of a file. Raises CommandError: it is neither, or options contradict it."""
    if text in set(QueueRule):
        if quotas or shares:
            words = f"--policy {text} knows no quotas and no shares"
            raise CommandError(words, "Give a policy file: `muster policy show` prints one.", Exit.USAGE)
        return PlayedRule(text)
    path = Path(text)
    if not path.is_file():
        words = f"--policy {text}: neither a rule nor a file: the rules are {', '.join(QueueRule)}"
        raise CommandError(words, "Or give the path of a policy file.", Exit.USAGE)
    if fails:
        advice = "Leave out --failures, or give a rule by name."
        raise CommandError("--failures are not played under a policy file", advice, Exit.USAGE)
    policy = policy_of_file(path)
    members = dict(_share(one) for one in shares)
    tenancy = Tenancy(members=members, quotas=dict(_quota(one, policy) for one in quotas))
    return PlayedRule(path.name, policy, tenancy)


def _quota(text: str, policy: Policy) -> tuple[tuple[TenantId, str], Quota]:
    key, _, limits = text.rpartition("=")
    tenant, _, tier = key.rpartition("/")
    numbers = limits.split(":")
    if not tenant or not all(part.isascii() and part.isdigit() for part in numbers) or len(numbers) > 2:
        raise CommandError(f"--quota {text!r} is no quota", _QUOTA_FORM, Exit.USAGE)
    if tier not in policy.tiers:
        words = f"--quota {text!r}: the policy has no tier {tier!r}: it has {', '.join(sorted(policy.tiers))}"
        raise CommandError(words, code=Exit.USAGE)
    guaranteed, ceiling = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else None
    if ceiling is not None and ceiling < guaranteed:
        words = f"--quota {text!r}: the ceiling {ceiling} is less than the {guaranteed} guaranteed GPUs"
        raise CommandError(words, code=Exit.USAGE)
    return (TenantId(tenant), tier), Quota(guaranteed=guaranteed, ceiling=ceiling)


def _share(text: str) -> tuple[TenantId, Member]:
    tenant, _, weight = text.rpartition("=")
    value = _number(weight)
    if not tenant or not 0 < value < math.inf:
        raise CommandError(f"--share {text!r} is no share", _SHARE_FORM, Exit.USAGE)
    return TenantId(tenant), Member(weight=value)


def _number(text: str) -> float:
    """Return the number; NaN, which is within no range, if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
