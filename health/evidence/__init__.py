"""The way from findings to evidence: merging, indexing, repetition and suppression."""
