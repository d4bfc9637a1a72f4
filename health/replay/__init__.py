"""Replay of the judgement over recorded reports."""
