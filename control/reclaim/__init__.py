"""Reclaim as a contract, committed: what the planner is told, notices, holds, what became of each victim.

Locks: the victim's job guards a reclaim's state, the beneficiary's job guards what is held for it.
"""
