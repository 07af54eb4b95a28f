"""Measurements and claims."""
