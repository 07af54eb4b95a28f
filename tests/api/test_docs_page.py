"""The page for people who try the API: it works on a machine without a network."""

import re
from pathlib import Path

from fastapi.testclient import TestClient

from cake_api.app import create_app
from cake_api.settings import Settings


def test_the_docs_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    http = TestClient(create_app(Settings(data_dir=tmp_path)))
    page = http.get("/docs").text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(loaded) == 3
    for url in loaded:
        assert url.startswith("/"), url
        assert http.get(url).status_code == 200
