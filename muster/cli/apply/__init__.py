"""``muster apply``: tenants, quotas, cordons and the policy as files say, with the differences first."""
