"""Policies: which tokens a compressed segment keeps. ``registry.make_policy`` makes one from its name."""
