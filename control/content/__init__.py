"""Content that tenants store for their jobs: folders as chunks in an S3-compatible store, and when they are deleted."""
