"""``muster apply``: tenants, quotas, cordons, rate cards and the policy as files say, with the differences first."""
