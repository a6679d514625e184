"""Callers and their rights: tenants, credentials, roles, quotas."""
