"""Tenants that try to read each other."""
