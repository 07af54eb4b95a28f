"""The ``cake-sglang`` command: finds its subcommands through entry points and imports only the one that runs."""

import difflib
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

GROUP = "cake_sglang.commands"
SUMMARIES = {
    "engine": "start SGLang with the plugin",
    "inspect": "show what a policy keeps of a text; without a text, versions and prepared models",
    "verify": "check the plugin and a prepared model",
    "up": "start the HTTP service, with or without its own engine",
    "ask": "ask a question",
    "docs": "list, add, show and delete documents",
    "status": "show whether service and engine are ready",
    "claims": "run the commands behind the README's figures",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; its exit status is the result, 2 for a wrong call."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {point.name: point for point in entry_points(group=GROUP)}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage(commands))
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name not in commands:
        near = difflib.get_close_matches(name, commands, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(commands))}"
        print(f"cake-sglang: unknown command {name!r}{hint}", file=sys.stderr)
        return 2
    try:
        function = commands[name].load()
    except ModuleNotFoundError as error:
        print(
            f"cake-sglang {name}: Python module {error.name!r} is not installed; "
            "install the extra that brings it: cake-sglang[engine] or cake-sglang[api]",
            file=sys.stderr,
        )
        return 1
    try:
        return int(function(rest) or 0)
    except KeyboardInterrupt:
        return 130


def _usage(commands: dict[str, EntryPoint]) -> str:
    lines = ["usage: cake-sglang COMMAND [options]", ""]
    lines += [f"  {name:<9} {SUMMARIES.get(name, '')}" for name in sorted(commands)]
    return "\n".join([*lines, "", "cake-sglang COMMAND --help tells more."])


if __name__ == "__main__":
    sys.exit(main())
