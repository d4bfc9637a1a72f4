"""Checkpoints as the control plane knows them, and which of them a fault may have tainted."""
