"""The health of groups of GPUs: a node, a rack, a cohort, a site, a model, a tenant, the fleet."""
