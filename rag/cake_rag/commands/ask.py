"""``cake-sglang ask``: ask the running service a question."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from cake_rag.answering import AnswerEvent, StatusEvent
from cake_rag.client import ServiceClient
from cake_rag.commands.report import add_url_argument, reported
from cake_rag.documents import Answer, AnswerMode


def main(argv: Sequence[str] | None = None) -> int:
    """Print a cited answer; progress goes to standard error.

    Returns:
        0 for an answer or a declined one, 1 for a refused question, 3 when the service or its engine is away.
    """
    parser = argparse.ArgumentParser(prog="cake-sglang ask", description="Ask a question about stored documents.")
    parser.add_argument("question")
    parser.add_argument("--doc", metavar="ID", action="append", help="document to read; may be repeated")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer in tokens")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    add_url_argument(parser)
    arguments = parser.parse_args(argv)
    return reported(lambda: _ask(arguments))


def _ask(arguments: argparse.Namespace) -> int:
    with ServiceClient(arguments.url) as client:
        for event in client.ask(arguments.question, arguments.doc, arguments.max_tokens):
            if isinstance(event, StatusEvent):
                print(f"{event.stage} {event.elapsed_s:.1f} s", file=sys.stderr)
            elif isinstance(event, AnswerEvent):
                answer = event.answer
                print(json.dumps(asdict(answer), ensure_ascii=False) if arguments.json else format_answer(answer))
    return 0


def format_answer(answer: Answer) -> str:
    """Give an answer as lines for a terminal: text, citations, what was read, tokens and times."""
    lines = [answer.text, ""]
    for number, citation in enumerate(answer.citations, start=1):
        quote = " ".join(citation.quote.split())
        where = f"{citation.document_name}, page {citation.page}, characters {citation.start}-{citation.end}"
        lines.append(f"[{number}] “{quote}”")
        lines.append(f"    {where}, score {citation.score:.2f}")
    if answer.declined and answer.unsupported_text:
        lines.append(f"The model wrote, without support: {answer.unsupported_text}")
    if answer.mode is AnswerMode.PASSAGES:
        lines.append(f"Read: {len(answer.passages)} passages.")
    lines += [f"Note: {note}" for note in answer.notes]
    usage = answer.usage
    lines.append(
        f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens were cached, "
        f"first token after {answer.ttft_s:.2f} s, answer after {answer.total_s:.2f} s"
    )
    return "\n".join(lines)
