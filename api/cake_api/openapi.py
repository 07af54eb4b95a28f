"""The service's OpenAPI document: ``python -m cake_api.openapi`` writes ``api/openapi.json``."""

import json
from pathlib import Path

from cake_api.app import create_app
from cake_api.settings import Settings


def openapi_text() -> str:
    """Give the document as it is committed: indented JSON, keys in the order of the routes."""
    return json.dumps(create_app(Settings.model_construct()).openapi(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the document beside the package."""
    Path(__file__).resolve().parents[1].joinpath("openapi.json").write_text(openapi_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
