"""What the service's commands share: the URL option, and one line for every failure."""

import argparse
import sys
from collections.abc import Callable

from cake_rag.client import DEFAULT_URL, URL_VARIABLE, ServiceError, ServiceProblemError

REFUSED = 1
AWAY = 3


def add_url_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--url``."""
    parser.add_argument("--url", help=f"base URL of the service (default: ${URL_VARIABLE}, else {DEFAULT_URL})")


def reported(command: Callable[[], int]) -> int:
    """Give the exit code of ``command``, and print one line where it fails.

    Returns:
        The command's own code, 1 when it is refused, 3 when service or engine are away, 130 after Ctrl-C.
    """
    try:
        return command()
    except ServiceProblemError as error:
        print(f"error: {error}", file=sys.stderr)
        return AWAY if error.status == 503 else REFUSED
    except ServiceError as error:
        print(f"error: {error}. Start it with `cake-sglang up`, or name it with --url.", file=sys.stderr)
        return AWAY
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return 130
