"""The REST API: thin routes over the services, one problem registry, strict bodies, idempotent changes, streams."""
