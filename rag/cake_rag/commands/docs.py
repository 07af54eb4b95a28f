"""``cake-sglang docs``: list, add, show and delete documents of the running service."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cake_rag.client import ServiceClient
from cake_rag.commands.report import REFUSED, add_url_argument, reported
from cake_rag.documents import Document, DocumentStatus

_POLL_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Manage documents.

    Returns:
        0 when done, 1 when refused or when ingestion failed, 3 when the service is away.
    """
    parser = argparse.ArgumentParser(prog="cake-sglang docs", description="Manage the stored documents.")
    add_url_argument(parser)
    actions = parser.add_subparsers(required=True)
    listing = actions.add_parser("list", help="list all documents, newest first")
    listing.set_defaults(run=_list)
    adding = actions.add_parser("add", help="upload a file and wait until it can be asked")
    adding.add_argument("file", type=Path)
    adding.add_argument("--no-wait", action="store_true", help="return as soon as it is stored")
    adding.set_defaults(run=_add)
    showing = actions.add_parser("show", help="show one document")
    showing.add_argument("id")
    showing.set_defaults(run=_show)
    deleting = actions.add_parser("delete", help="delete a document and all that was derived from it")
    deleting.add_argument("id")
    deleting.set_defaults(run=_delete)
    arguments = parser.parse_args(argv)

    def run() -> int:
        with ServiceClient(arguments.url) as client:
            return arguments.run(client, arguments)

    return reported(run)


def _list(client: ServiceClient, _: argparse.Namespace) -> int:
    for document in client.documents():
        print(f"{document.id}  {document.status:<8}  {document.num_chars:>10} characters  {document.name}")
    return 0


def _add(client: ServiceClient, arguments: argparse.Namespace) -> int:
    upload = client.upload(arguments.file)
    document = upload.document
    if upload.deduplicated:
        print("the same bytes were stored before", file=sys.stderr)
    started = time.monotonic()
    shown: str = ""
    while not arguments.no_wait and document.status not in (DocumentStatus.READY, DocumentStatus.FAILED):
        if document.status != shown:
            shown = document.status
            print(f"{shown} {time.monotonic() - started:.1f} s", file=sys.stderr)
        time.sleep(_POLL_S)
        document = client.document(document.id)
    print(document.id)
    for note in document.notes:
        print(f"note: {note}", file=sys.stderr)
    if document.status is DocumentStatus.FAILED:
        print(f"error: {document.error}", file=sys.stderr)
        return REFUSED
    return 0


def _show(client: ServiceClient, arguments: argparse.Namespace) -> int:
    print(_described(client.document(arguments.id)))
    return 0


def _delete(client: ServiceClient, arguments: argparse.Namespace) -> int:
    client.delete(arguments.id)
    return 0


def _described(document: Document) -> str:
    rows = [
        ("id", document.id),
        ("name", document.name),
        ("type", document.media_type),
        ("status", document.status),
        ("created", document.created_at),
        ("bytes", document.size_bytes),
        ("characters", document.num_chars),
        ("pages", document.num_pages),
        ("chunks", document.num_chunks),
        ("tokens", "not counted yet" if document.num_tokens is None else document.num_tokens),
        *(("note", note) for note in document.notes),
    ]
    if document.error:
        rows.append(("error", document.error))
    return "\n".join(f"{label:<10}  {value}" for label, value in rows)
