"""Evidence and signals as rows: what the judge reads and what its inbox holds."""
