"""The watch judges running jobs: hangs, stragglers, values, replicas. Pure: the standard library and the domain."""
