"""Subcommands of ``cake-sglang`` that measure or show."""
