"""Reclaim as a contract, committed: input of the planner, notices, holds, and each victim's outcome.

Locks: the victim's job guards a reclaim's state, the beneficiary's job guards its holds.
"""
