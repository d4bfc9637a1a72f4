"""Planted bugs: each is a small patch of the wiring. The suite fails when one of them is no longer found.

``found_at`` is a seed whose history shows it, ``breaks`` the invariant that it breaks there. The same seed without the
bug breaks nothing. After a change to the world ``python -m simulator --bugs`` prints the new values.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.planning import patches as misplanning
from simulator.world import patches
from simulator.world.wiring import TRUE_WIRING, Wiring
from simulator.world.world import History, run_seed

SEEDS_TO_FIND: Final = 2_000
"""Each bug has to show within so many seeds."""


@dataclass(frozen=True, slots=True)
class PlantedBug:
    name: str
    what: str
    found_at: int
    breaks: str
    wiring: Wiring


def _bug(name: str, what: str, found_at: int, breaks: str, **patch: Any) -> PlantedBug:
    return PlantedBug(name, what, found_at, breaks, replace(TRUE_WIRING, **patch))


PLANTED_BUGS: Final = (
    _bug(
        "start_without_claim", "a program starts on the message, with no claim handshake", 0, "all or none",
        host_step=patches.start_without_claim,
    ),
    _bug(
        "never_self_fences", "a host that is cut off runs on past its lease", 90, "I13",
        host_step=patches.never_fence, supervisors_fence_themselves=False,
    ),
    _bug(
        "lease_too_long", "the host's lease is longer than the server's", 253, "I13",
        server_timers=patches.lend_longer,
    ),
    _bug(
        "no_reaper", "one wake-up is sent for an order; no later one, no list and no reaper follows", 0, "liveness",
        attempt_step=patches.no_reaper, lists_unclaimed_unrung=False,
    ),
    _bug(
        "stale_completion", "the report of an old attempt is applied to the new one", 0, "I14",
        checks_fence_of_reports=False,
    ),
    _bug(
        "stale_commit", "a checkpoint under an old fence is taken", 0, "I13",
        checks_fence_of_commits=False,
    ),
    _bug(
        "window_closed_twice", "a ledger's window that is closed again after a death is stored again", 0, "I23",
        corrects_closed_windows=False,
    ),
    _bug(
        "admission_at_select", "admission is asked when GPUs are selected, not at commit", 0, "I3",
        rechecks_admission=False,
    ),
    _bug(
        "completion_twice", "a completion that comes twice counts twice", 0, "I23",
        attempt_step=patches.not_idempotent,
    ),
    _bug(
        "grant_outlives_boot", "a grant of before the reboot starts a program after it", 0, "liveness",
        host_restarted=patches.remember_records,
    ),
    _bug(
        "reaper_without_cas", "the reaper writes what it decided on an old reading", 0, "I21",
        compares_and_sets=False,
    ),
    _bug(
        "acts_before_disk", "the launcher acts before its ledger is on disk", 1, "liveness",
        persists_before_acting=False,
    ),
    _bug(
        "clean_without_look", "a host says clean without having looked", 0, "I22",
        checks_before_clean=False,
    ),
    _bug(
        "old_boots_believed", "a delayed heartbeat of an earlier boot is accepted", 1, "I14",
        accept_heartbeat=patches.believe_all_boots, knows_claiming_boot=False,
    ),
    _bug(
        "two_schedulers", "a commit trusts the snapshot of its selection", 0, "I21",
        rechecks_snapshot=False,
    ),
    _bug(
        "holds_not_asked", "a commit takes GPUs that are held for a job that changes its size", 11, "hold",
        rechecks_holds=False,
    ),
    _bug(
        "smaller_than_fewest", "an elastic job is placed with fewer hosts than its fewest", 0, "I5",
        keeps_to_sizes=False,
    ),
    _bug(
        "deadline_forgotten", "after its restart the server asks for stops at once", 0, "I8",
        forgets_deadlines_at_restart=True,
    ),
    _bug(
        "no_expiry_guard", "leases end right after the control plane's own outage", 4, "R15",
        server_timers=patches.expire_at_once,
    ),
    _bug(
        "ends_too_early", "an attempt ends with its first bad exit", 0, "R15",
        attempt_step=patches.end_at_once,
    ),
    _bug(
        "grants_twice", "a claim is granted whatever the attempt has come to", 119, "I21",
        attempt_step=patches.forget_grants,
    ),
    _bug(
        "stop_not_resumed", "a stop is lost with the launcher that had recorded it", 72, "liveness",
        host_restarted=patches.forget_stops,
    ),
    _bug(
        "refusal_forgotten", "a refused claim leaves no report", 6, "liveness",
        host_step=patches.forget_refused,
    ),
    _bug(
        "answers_before_commit", "the 2xx leaves before the job is committed", 5, "I12",
        answers_after_commit=False,
    ),
    _bug(
        "goes_by_itself", "a host of a gang starts once it is ready itself", 1, "all or none",
        host_step=patches.go_by_oneself,
    ),
    _bug(
        "goes_with_the_first", "a gang gets the go with its first ready host", 1, "all or none",
        attempt_step=patches.go_with_the_first,
    ),
    _bug(
        "unready_waited_for", "a host that never gets ready is waited for", 18, "liveness",
        server_timers=patches.wait_for_ready,
    ),
    _bug(
        "go_said_once", "the go is in the answer to the last ready host alone", 1, "liveness",
        repeats_go=False,
    ),
    _bug(
        "breaker_not_asked", "rules take out whatever they judge, at once", 0, "I10",
        admit=patches.admit_all,
    ),
    _bug(
        "node_holds_not_asked", "nodes are held whatever rules have taken out, and count nowhere", 5, "I10",
        admit_takings=patches.admit_all_takings,
    ),
    _bug(
        "holds_count_for_ever", "a node that takes work again still counts as held", 3, "I29",
        end_ways=patches.never_give_back,
    ),
    _bug(
        "breaker_forgotten", "the breaker is in the server's memory, and lost with it", 0, "I25",
        forgets_breaker_at_restart=True,
    ),
    _bug(
        "old_burn_in_proves", "a burn-in counts as proof against findings reported after it began", 37, "I11",
        decide=patches.decide_by_any_burn_in,
    ),
    _bug(
        "narrow_burn_in_proves", "a burn-in proves also what it did not test", 37, "I28",
        decide=patches.decide_by_any_coverage,
    ),
    _bug(
        "old_rates_act", "a finding that arrives half an hour late still lowers the score", 3, "I26",
        health_policy=patches.POLICY_THAT_NEVER_FORGETS,
    ),
    _bug(
        "fast_clocks_believed", "a finding counts from its host's time, even if that is in the future", 762, "liveness",
        clamps_times=False,
    ),
    _bug(
        "lease_by_wall_clock", "leases count by the host's time of day, which people set", 38, "I13",
        leases_by_wall_clock=True,
    ),
    _bug(
        "notice_from_selection", "a notice counts from when its victim was chosen", 1, "I8",
        counts_notice_from_commit=False,
    ),
    _bug(
        "victims_not_asked_again", "a notice takes whatever attempt its job has by then", 160, "I9",
        rechecks_victims=False,
    ),
    _bug(
        "ceiling_at_select", "a tenant's ceiling is asked when GPUs are selected, not at commit", 225, "I6",
        rechecks_ceiling=False,
    ),
    _bug(
        "keys_not_remembered", "a repeated submit makes a second job", 0, "I12",
        remembers_keys=False,
    ),
    _bug(
        "planner_ignores_holds", "GPUs that are held for one job are planned, and given, to another", 11, "hold",
        plan=misplanning.ignore_holds, rechecks_holds=False,
    ),
    _bug(
        "kept_not_held", "any job may take an interrupted attempt's GPUs until its job is placed again", 16, "kept",
        keeps_interrupted=False,
    ),
    _bug(
        "kept_given_away", "GPUs that are kept for an interrupted job are planned, and given, to another", 14, "kept",
        plan=misplanning.ignore_kept, rechecks_kept=False,
    ),
    _bug(
        "evacuees_counted_on", "GPUs with which an evacuated job continues are held for another", 70, "kept",
        plan=misplanning.count_on_evacuees, rechecks_staying=False,
    ),
    _bug(
        "firm_starts_forgotten", "a later job moves a start that was firm, and nothing says why", 9, "I31",
        plan=misplanning.forget_firm_starts,
    ),
    _bug(
        "kept_for_ever", "a job that cannot continue on its kept GPUs never gives them back", 14, "given back",
        plan=misplanning.never_give_back,
    ),
    _bug(
        "replacement_for_ever", "a gang waits past the policy's time for a host of its domain", 257, "given back",
        plan=misplanning.wait_for_ever,
    ),
    _bug(
        "reserved_reclaimed", "GPUs are reclaimed from a tier that no rule may reclaim", 70, "I7",
        plan=misplanning.reclaim_from_any_tier, rechecks_victims=False,
    ),
    _bug(
        "min_run_ignored", "an attempt is reclaimed before its minimum run time", 16, "I9",
        plan=misplanning.ignore_min_run, rechecks_victims=False,
    ),
    _bug(
        "cap_ignored", "a tenant loses more in a window than its cap", 14, "I9",
        plan=misplanning.ignore_caps, rechecks_caps=False,
    ),
    _bug(
        "quota_above_ignored", "a team stays within its own quota, not within its department's", 192, "I6",
        plan=misplanning.ignore_quotas_above, rechecks_ceiling=False,
    ),
    _bug(
        "guarantee_lent", "a guarantee in a tier without notice is lent to jobs that stay", 16, "guarantee",
        plan=misplanning.lend_guarantees,
    ),
    _bug(
        "rack_split", "a gang that requires one rack is spread over two", 10, "level",
        plan=misplanning.split_domains, rechecks_places=False,
    ),
    _bug(
        "slice_split", "hosts that belong in one rack together are taken from two", 106, "level",
        plan=misplanning.split_slices, rechecks_places=False,
    ),
    _bug(
        "spread_over_unknown", "an even spread has hosts whose place is unknown", 236, "level",
        plan=misplanning.spread_over_unknown, rechecks_places=False,
    ),
    _bug(
        "cohorts_mixed", "a gang has GPUs of two models", 40, "I4",
        plan=misplanning.mix_cohorts, rechecks_places=False,
    ),
    _bug(
        "gpu_given_twice", "two ranks of a gang have one GPU", 9, "I1",
        plan=misplanning.give_a_gpu_twice,
    ),
    _bug(
        "one_victim_more", "a job whose GPUs no job needs gets a notice", 11, "I19",
        plan=misplanning.evict_one_more,
    ),
    _bug(
        "reclaimed_for_nobody", "notice is given for a job that is no longer pending by then", 653, "reclaim",
        rechecks_beneficiary=False,
    ),
    _bug(
        "told_and_withdrawn", "a reclaim is withdrawn though its victim knows of it", 202, "withdrawal",
        rechecks_delivered=False,
    ),
    _bug(
        "order_of_reading", "the queue follows the order in which its rows were read", 10, "I19",
        plan=misplanning.take_the_first_listed,
    ),
)  # fmt: skip
BUGS: Final = {bug.name: bug for bug in PLANTED_BUGS}


def first_history_that_finds(bug: PlantedBug, within: int = SEEDS_TO_FIND) -> History | None:
    """Return the first history, from seed 0 on, that breaks an invariant; None if there is none within so many."""
    for seed in range(within):
        history = run_seed(seed, bug.wiring, bug.name)
        if history.violation is not None:
            return history
    return None
