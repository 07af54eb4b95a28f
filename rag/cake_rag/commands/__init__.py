"""Service-side subcommands of ``cake-sglang``, one file each."""
