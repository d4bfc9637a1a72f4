"""Package of ``muster run``: a program under the host's own supervisor, with causes, restarts and resume.

It needs no control plane.
"""
