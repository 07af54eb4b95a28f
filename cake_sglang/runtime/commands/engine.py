"""``cake-sglang engine``: prepare the model, print the effective command line, become SGLang."""

import argparse
import os
import sys
import time
from collections.abc import Sequence

from cake_sglang.errors import CakeError
from cake_sglang.runtime.compat import require_sglang_version
from cake_sglang.runtime.device import cuda_device_count
from cake_sglang.runtime.launch import build_command, check_memory, check_port
from cake_sglang.runtime.model_files import cache_dir, resolve_model


def main(argv: Sequence[str] | None = None) -> int:
    """Start the engine; does not return when it starts, since the process becomes SGLang."""
    parser = argparse.ArgumentParser(
        prog="cake-sglang engine",
        description="Start SGLang with the plugin. Every other option goes to SGLang as it is.",
        allow_abbrev=False,
    )
    parser.add_argument("--model", help="folder, .gguf file or Hugging Face id (default: the embedded model)")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: %(default)s)")
    parser.add_argument("--port", type=int, default=30000, help="port to bind (default: %(default)s)")
    parser.add_argument("--print-only", action="store_true", help="print the command line and stop")
    options, extra = parser.parse_known_args(argv)
    extra = [word for word in extra if word != "--"]
    try:
        require_sglang_version()
        if not options.print_only:
            check_port(options.host, options.port)
            check_memory()
        started = time.monotonic()
        print(f"engine: preparing model {options.model or '(embedded)'}", flush=True)
        model_path = resolve_model(options.model, cache_dir(os.environ))
        print(f"engine: model at {model_path} after {time.monotonic() - started:.1f} s", flush=True)
        command = build_command(
            model_path=model_path,
            host=options.host,
            port=options.port,
            num_gpus=cuda_device_count(),
            extra=extra,
            environ=os.environ,
        )
    except CakeError as error:
        print(f"cake-sglang engine: {error}", file=sys.stderr)
        return 1
    print(f"engine: {command}", flush=True)
    if options.print_only:
        return 0
    os.execve(sys.executable, command.arguments, command.environ)
