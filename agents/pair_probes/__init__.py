"""Probes between hosts: this agent answers those of others and sends its own to whom the control plane names."""
