"""``cake-sglang claims``: run the command behind every figure of the README and compare with its bound.

Writes ``eval/results/claims.json`` and the README's measured table. Every command ends with one line of JSON; a claim
is one value in it and the bound that must hold. ``--only AREA`` runs one area and keeps the other rows.
"""

import argparse
import json
import operator
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "eval" / "results" / "claims.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
COMPARE: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


@dataclass(frozen=True, slots=True)
class Claim:
    """One value of a command's JSON and its bound, such as ``>= 30``."""

    id: str
    claim: str
    key: str
    bound: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """A command and the claims that stand on it."""

    area: str
    command: tuple[str, ...]
    claims: tuple[Claim, ...]


MEASUREMENTS = (
    Measurement(
        "engine",
        ("python", "-m", "cake_eval.engine_bench"),
        (
            Claim("cpu-warm-ttft", "first token of a 30-token question over 7,000 cached tokens, times faster than "
                  "stock torch_native", "warm_ttft_speedup", ">= 30"),
            Claim("cpu-decode-7000", "decode over 7,000 tokens, times faster than stock", "decode_speedup_at_7000",
                  ">= 1"),
            Claim("cpu-prefill-7000", "cold prefill of 7,000 tokens, times faster than stock", "cold_prefill_speedup",
                  ">= 1"),
            Claim("greedy-equal", "greedy answers of 48 tokens that differ from stock SGLang, of 5", "greedy_different",
                  "== 0"),
        ),
    ),
    Measurement(
        "smoke",
        ("cake-sglang", "up", "--with-engine", "--smoke", "--port", "18080", "--engine-port", "18000"),
        (
            Claim("smoke-ok", "example: gold phrase cited twice, unanswerable question declined, cache reused", "ok",
                  "== 1"),
            Claim("smoke-document-tokens", "tokens of the example document", "document_tokens", ">= 3000"),
            Claim("smoke-cached", "prompt tokens of the second question that came from the cache", "cached_tokens_2",
                  ">= 3000"),
        ),
    ),
    Measurement(
        "install",
        ("python", "-m", "cake_eval.install_size"),
        (
            Claim("install-api", "service image's packages, GB (locks/api.txt)", "api_gb", "<= 0.6"),
            Claim("install-cpu", "CPU engine's packages, GB (locks/engine-cpu.txt)", "engine-cpu_gb", "<= 7"),
            Claim("install-gpu", "SGLang's official set, GB (locks/engine-gpu.txt)", "engine-gpu_gb", "<= 12"),
            Claim("install-dev", "`make install`, GB (locks/dev-cpu.txt)", "dev-cpu_gb", "<= 8"),
            Claim("install-dev-s", "`make install` with uv's cache full, seconds", "dev-cpu_s", "<= 60"),
            Claim("install-gpu-s", "official set with uv's cache full, seconds", "engine-gpu_s", "<= 60"),
        ),
    ),
    Measurement(
        "method",
        ("python", "-m", "cake_eval.method_report"),
        (
            Claim("golden-different", "recorded outputs of the reference code that the policies do not reproduce, of 8 "
                  "files", "golden_different", "== 0"),
            Claim("golden-preference", "largest relative error of a layer preference against the reference code",
                  "worst_preference", "<= 2e-4"),
            Claim("cascade-peak", "largest share of the prompt that CAKE's cascade holds at its peak, layer by layer",
                  "peak_waterfill", "<= 1"),
            Claim("window-stats-memory", "MiB that the window statistics need besides inputs: 131,072 keys, 32 query "
                  "heads, 32 rows", "window_stats_mib", "<= 64"),
        ),
    ),
    Measurement(
        "citations",
        ("python", "-m", "cake_eval.calibrate_citations"),
        (
            Claim("citation-false-accept", "unsupported answers that get a citation, share of the held-out set",
                  "false_accept_rate", "<= 0.05"),
            Claim("citation-recall", "supported answers that get one, share of the held-out set", "recall", ">= 0.5"),
        ),
    ),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurements; 1 if a claim does not hold."""
    areas = sorted({measurement.area for measurement in MEASUREMENTS})
    parser = argparse.ArgumentParser(prog="cake-sglang claims", description="Run the README's measurements.")
    parser.add_argument("--only", choices=areas, help="run one area")
    options = parser.parse_args(argv)
    chosen = [m for m in MEASUREMENTS if options.only in (None, m.area)]
    rows = [row for measurement in chosen for row in run(measurement)]
    kept = [row for row in _stored() if row["area"] not in {m.area for m in chosen}]
    rows = sorted(kept + rows, key=lambda row: (row["area"], row["id"]))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    README.write_text(with_table(README.read_text(encoding="utf-8"), rows), encoding="utf-8")
    for row in rows:
        print(f"{'ok  ' if row['ok'] else 'FAIL'} {row['id']}: {row['value']} ({row['bound']})")
    return 0 if all(row["ok"] for row in rows) else 1


def run(measurement: Measurement) -> list[dict[str, Any]]:
    """Run one command and judge its claims; a command that fails without JSON fails them all."""
    program = [str(Path(sys.executable).parent / measurement.command[0]), *measurement.command[1:]]
    print(f"claims: {shlex.join(measurement.command)}", file=sys.stderr, flush=True)
    done = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.strip().splitlines()
    try:
        values = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        values = {}
    shared = {
        "command": shlex.join(measurement.command),
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    return [judge(claim, values, measurement.area) | shared for claim in measurement.claims]


def judge(claim: Claim, values: dict[str, Any], area: str) -> dict[str, Any]:
    """Give the row of one claim without the columns that its command shares."""
    value = values.get(claim.key)
    sign, limit = claim.bound.split()
    ok = value is not None and COMPARE[sign](float(value), float(limit))
    shown = None if value is None else _rounded(float(value))
    return {
        "id": claim.id,
        "area": area,
        "claim": claim.claim,
        "value": shown,
        "bound": claim.bound,
        "ok": ok,
    }


def _rounded(value: float) -> float:
    """Three decimals; two digits of what would vanish."""
    return round(value, 3) if value == 0 or abs(value) >= 0.001 else float(f"{value:.2g}")


def machine() -> str:
    """Name the processor, the number of usable cores and the memory."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, no GPU"


def with_table(readme: str, rows: list[dict[str, Any]]) -> str:
    """Replace the text between the two markers by the rows as a table."""
    lines = ["| claim | measured | bound | machine, date |", "|---|---|---|---|"]
    for row in rows:
        value = "not measured" if row["value"] is None else f"{row['value']:g}"
        lines.append(f"| {row['claim']} | {value} | {row['bound']} | {row['machine']}, {row['date']} |")
    before, rest = readme.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}"


def _stored() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else []
