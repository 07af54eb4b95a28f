"""``cake-sglang verify``: prepare a model and check that plugin and model files can work, before serving."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from cake_sglang.errors import CakeError
from cake_sglang.runtime.compat import require_sglang_version, require_signature
from cake_sglang.runtime.model_files import MANIFEST, cache_dir, find_damage, resolve_model


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per check; 1 at the first that fails."""
    parser = argparse.ArgumentParser(prog="cake-sglang verify", description=__doc__)
    parser.add_argument("--model", help="folder, .gguf file or Hugging Face id (default: the embedded model)")
    options = parser.parse_args(argv)
    try:
        print(f"sglang {require_sglang_version()}: pinned version")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SGLang warns, on import, of features that need a GPU
            from cake_sglang.runtime.backends.torch_native_backend import required_signatures

        signatures = required_signatures()
        for function, parameters in signatures:
            require_signature(function, parameters)
        print(f"seams: {len(signatures)} signatures as expected")
        model = resolve_model(options.model, cache_dir(os.environ))
        print(f"model: {model}, {_state(Path(model))}")
    except CakeError as error:
        print(f"cake-sglang verify: {error}", file=sys.stderr)
        return 1
    return 0


def _state(path: Path) -> str:
    if not path.is_dir():
        return "a Hugging Face id, not checked"
    if not (path / MANIFEST).is_file():
        return "a folder of the user, no checksums to compare"
    return find_damage(path) or "all checksums match"
