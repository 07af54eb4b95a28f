"""``cake-sglang inspect [TEXT]``: show what a policy keeps of a text; without a text, versions, settings and models."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cake_sglang.errors import CakeError, PolicyError
from cake_sglang.policies.base import KVPolicy
from cake_sglang.policies.registry import make_policy
from cake_sglang.runtime.model_files import cache_dir, resolve_model
from cake_sglang.runtime.report import installation_report


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table or the report; 1 if the text, the policy or the installation cannot work."""
    parser = argparse.ArgumentParser(prog="cake-sglang inspect", description=__doc__)
    parser.add_argument("text", nargs="?", type=Path, help="text file, UTF-8")
    parser.add_argument("--model", help="folder or .gguf file (default: the embedded model)")
    parser.add_argument("--policy", default="cake", help="name of a policy (default: cake)")
    parser.add_argument("--budget", type=int, default=256, help="mean tokens per layer and KV head (default: 256)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a field of the policy, such as window=16"
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="look at the first N tokens of the text only")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw it")
    parser.add_argument("--json", action="store_true", help="print JSON, with every kept position")
    options = parser.parse_args(argv)
    if options.text is None:
        return _show_installation(options.json)
    try:
        _show_text(options)
    except (CakeError, OSError) as error:
        print(f"cake-sglang inspect: {error}", file=sys.stderr)
        return 1
    return 0


def _show_text(options: argparse.Namespace) -> None:
    policy = _policy(options.policy, options.set)
    policy.check_budget(options.budget)
    if options.max_tokens is not None and options.max_tokens < 1:
        raise PolicyError(f"--max-tokens is {options.max_tokens}, expected an integer of at least 1")
    text = _read(options.text)
    if options.plot is not None:
        _check_plot(options.plot)
    # Late, because transformers takes seconds to import and a wrong call should not.
    from cake_eval.inspection import inspect_document, lines
    from cake_eval.reference_model import ReferenceModel, quiet

    quiet()
    model = ReferenceModel.load(resolve_model(options.model, cache_dir(os.environ)))
    token_ids = model.tokens(text)[: options.max_tokens]
    if len(token_ids) > model.context_length:
        raise PolicyError(
            f"{options.text} has {len(token_ids)} tokens, the model takes up to {model.context_length}; "
            f"--max-tokens {model.context_length} looks at its beginning"
        )
    inspection = inspect_document(model, token_ids, policy, options.budget)
    if options.json:
        print(json.dumps(inspection.to_json()))
    else:
        print("\n".join(lines(inspection)))
    if options.plot is not None:
        from cake_eval.inspection_plot import draw

        draw(inspection, options.plot)
        print(f"plot: {options.plot}", file=sys.stderr)


def _policy(name: str, settings: Sequence[str]) -> KVPolicy:
    values: dict[str, Any] = {}
    for setting in settings:
        field, equals, value = setting.partition("=")
        if not equals:
            raise PolicyError(f"--set is {setting!r}, expected FIELD=VALUE")
        try:
            values[field] = json.loads(value)
        except json.JSONDecodeError:
            values[field] = value
    return make_policy(name, **values)


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PolicyError(
            f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        ) from error
    if not text.strip():
        raise PolicyError(f"{path} holds no text, expected at least one word")
    return text


def _check_plot(path: Path) -> None:
    if path.suffix.lower() != ".png":
        raise PolicyError(f"--plot is {path}, expected a name that ends in .png")
    if not path.parent.is_dir():
        raise PolicyError(f"--plot is {path}, but there is no folder {path.parent}")


def _show_installation(as_json: bool) -> int:
    report = installation_report()
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        for name, value in report.items():
            print(f"{name}: {value}")
    return 0 if report["problem"] is None else 1
