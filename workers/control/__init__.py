"""The control plane's background work: sequencing, sealing, relaying, reconciling."""
