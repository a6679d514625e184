"""Who calls, and what it may do: tenants, credentials, roles, quotas."""
