"""Claims: a value over its bound is a failure, and the README shows what the stored rows say."""

import json

import pytest

from cake_eval.claims import BEGIN, END, MEASUREMENTS, README, RESULTS, Claim, judge, with_table

CLAIM = Claim("speed", "times faster", "speedup", ">= 30")


@pytest.mark.parametrize(
    ("values", "ok"),
    [({"speedup": 30}, True), ({"speedup": 29.9}, False), ({}, False), ({"speedup": None}, False)],
)
def test_a_claim_holds_only_when_its_value_is_there_and_within_its_bound(values: dict[str, float], ok: bool) -> None:
    assert judge(CLAIM, values, "engine")["ok"] is ok


def test_the_table_replaces_what_stood_between_the_markers() -> None:
    row = judge(CLAIM, {"speedup": 46.3567}, "engine") | {"machine": "m", "date": "2026-12-01", "command": "c"}
    text = with_table(f"before\n{BEGIN}\nold\n{END}\nafter\n", [row])
    assert "| times faster | 46.357 | >= 30 | m, 2026-12-01 |" in text
    assert "old" not in text
    assert text.startswith("before\n") and text.endswith("after\n")


def test_the_readme_shows_the_stored_rows_and_all_of_them_hold() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    readme = README.read_text(encoding="utf-8")
    assert with_table(readme, rows) == readme
    assert {row["id"] for row in rows} == {claim.id for m in MEASUREMENTS for claim in m.claims}
    assert [row["id"] for row in rows if not row["ok"]] == []
