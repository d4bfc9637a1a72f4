"""The groups of GPUs whose health is rolled up, and the rounds in which that is recorded."""

from enum import StrEnum


class GroupKind(StrEnum):
    """By what GPUs are put into groups. A tenant's group is the GPUs that are assigned to it at that time."""

    NODE = "node"
    RACK = "rack"
    COHORT = "cohort"
    SITE = "site"
    MODEL = "model"
    TENANT = "tenant"
    FLEET = "fleet"


class RoundStep(StrEnum):
    """The longest period (UTC) of which a round is the first. It decides how long the round is kept."""

    FIVE_MINUTES = "five_minutes"
    HOUR = "hour"
    DAY = "day"
