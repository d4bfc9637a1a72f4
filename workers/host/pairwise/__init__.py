"""The pairwise check of a gang, carried out: one leads (``lead``), each host attends (``attending``, ``meeting``).

Who meets whom, and what follows, is decided in ``health.pairwise.check``; what a group does together is
``muster.train.parallel.pairwise``.
"""
