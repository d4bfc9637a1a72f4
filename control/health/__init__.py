"""Judgement on stored data: the pure rules of ``health``, with what they read and what they decide as rows."""
