"""Our own content store: those calls of S3 that the control plane signs, on a folder of one disk."""
