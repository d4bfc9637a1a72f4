"""One-line changes that are planted in the product's code, each tried against the tests nearest to it.

``make mutants`` replays the changes of ``chosen.json`` and compares what the tests catch with ``before.json``.
"""
