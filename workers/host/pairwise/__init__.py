"""The pairwise check of a gang: one process leads (``lead``), each host attends (``attending``, ``meeting``).

``health.pairwise.check`` decides the groups and the verdicts; a group's all-gather is in
``muster.train.parallel.pairwise``.
"""
