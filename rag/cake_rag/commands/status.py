"""``cake-sglang status``: can the service answer questions, and if not, why."""

import argparse
from collections import Counter
from collections.abc import Sequence

from cake_rag.client import ServiceClient
from cake_rag.commands.report import AWAY, add_url_argument, reported


def main(argv: Sequence[str] | None = None) -> int:
    """Print the state of service, engine and documents.

    Returns:
        0 when questions can be answered, 3 when not.
    """
    parser = argparse.ArgumentParser(prog="cake-sglang status", description="Show whether the service is ready.")
    add_url_argument(parser)
    arguments = parser.parse_args(argv)
    return reported(lambda: _status(arguments.url))


def _status(url: str | None) -> int:
    with ServiceClient(url) as client:
        state = client.readiness()
        counts = Counter(document.status for document in client.documents())
        print(f"service    {client.url}")
    print(f"engine     {state.state}" + (f": {state.reason}" if state.state != "ready" else ""))
    if state.model_id is not None:
        print(f"model      {state.model_id}, {state.max_context_tokens} tokens of context")
    documents = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "none"
    print(f"documents  {documents}")
    return 0 if state.state == "ready" else AWAY
