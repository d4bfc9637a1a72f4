"""Probes between hosts: the agent answers other hosts' probes, and probes the hosts that the control plane names."""
