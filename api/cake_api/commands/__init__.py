"""Service start-up subcommands of ``cake-sglang``."""
