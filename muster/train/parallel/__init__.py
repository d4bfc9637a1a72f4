"""Ranks that form one job: groups, meshes, shards, sizes."""
