"""The active policy, its versions, and what is derived from it in rows."""
