"""Attention backends registered under SGLang's own names."""
