"""``muster run``: a program under the host's own supervisor, with causes, restarts and resume, and no control plane."""
