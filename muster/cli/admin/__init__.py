"""Commands for access, tenants, policy and audit."""
