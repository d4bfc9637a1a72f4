"""Nodes and GPUs as rows: what there is, where it stands, what keeps it out of work, and how people read it."""
