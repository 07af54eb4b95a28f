"""Compares recorded outputs of reference implementations with the pure policies."""
