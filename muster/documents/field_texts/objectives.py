"""Fields of objectives, and of findings about the speed of a job."""

from typing import Final

OBJECTIVE_TEXTS: Final[dict[str, str]] = {
    "BurnRates.factor": "The rate from which on it burns; 1 spends exactly the budget.",
    "BurnRates.long_rate": "The rate over the long window.",
    "BurnRates.long_s": "The long window, in seconds.",
    "BurnRates.name": "The name of the pair in the policy.",
    "BurnRates.severity": "How urgent it is when it burns.",
    "BurnRates.short_rate": "The rate over the short window; below `factor` it no longer burns.",
    "BurnRates.short_s": "The short window, in seconds.",
    "JobFinding.advice": "What to do about it.",
    "JobFinding.bar": "The bound that the value passes.",
    "JobFinding.kind": "What was found.",
    "JobFinding.num_reports": "How many reports it rests on.",
    "JobFinding.repaired": "The value to which a repair would bring it, for the gain.",
    "JobFinding.text": "The finding and its gain, as text.",
    "JobFinding.unit": "The unit of value, bar and repaired.",
    "JobFinding.value": "What was measured.",
    "JobFindings.items": "The findings, the largest gain first.",
    "ObjectiveBudget.burn_rates": "The pairs of windows with their rates.",
    "ObjectiveBudget.counted_from": "Since when events are counted; null until they are.",
    "ObjectiveBudget.good_share": "The share of good events in its days; null if there are none.",
    "ObjectiveBudget.indicator": "Which events count as good and as bad.",
    "ObjectiveBudget.is_spent": "Whether nothing of the error budget is left.",
    "ObjectiveBudget.job_class": "The class whose jobs it is about.",
    "ObjectiveBudget.name": "The name of the objective in the policy.",
    "ObjectiveBudget.state_since": "The exact time at which its state began.",
    "ObjectiveBudget.target": "The share of events that are to be good.",
    "ObjectiveBudget.window_days": "The days over which the budget counts.",
    "ObjectiveBudget.within_s": "For `start_latency`: seconds in which a job is to start; else null.",
}
