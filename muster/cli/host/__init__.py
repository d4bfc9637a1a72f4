"""Commands that run on a host, and the processes of a control plane."""
