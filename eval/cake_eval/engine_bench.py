"""CPU attention against SGLang's own: the same requests to both servers, one after the other, in one run.

Claim: only the new rows are computed, so the first token of a 30-token question over a cached prefix of N tokens
costs a pass over N keys instead of an N x N attention. Both servers run the embedded model in float32 with the same
flags. Timings are ratios within this run; the machine's noise is in both.

``python -m cake_eval.engine_bench`` prints one JSON document as its last line.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cake_eval.engine_process import EngineServer, running_engine

PREFIX_TOKENS = 7_000
QUESTION_TOKENS = 30
SHORT_TOKENS = 512
DECODE_TOKENS = 24
NUM_QUESTIONS = 3
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "patriotes-of-37.md"
SAMPLE_TOKENS = 48
SAMPLE_PREFIXES = (1, 60, 700, 3_000)


def measure(server: EngineServer) -> dict[str, Any]:
    """Run the whole set of requests on one server."""
    text = server.tokenize(EXAMPLE.read_text(encoding="utf-8"))
    long = (text * (PREFIX_TOKENS // len(text) + 1))[:PREFIX_TOKENS]
    greedy = [
        server.generate(text[start : start + length], SAMPLE_TOKENS)["output_ids"]
        for start, length in ((300 * i, n) for i, n in enumerate(SAMPLE_PREFIXES))
    ]
    # The same prefix again, and a longer one over it: answers that stand on cached tokens.
    greedy.append(server.generate(text[900 : 900 + 3_000] + text[:40], SAMPLE_TOKENS)["output_ids"])
    started = time.perf_counter()
    server.generate(long, 1)
    cold_s = time.perf_counter() - started
    warm_s, cached = [], []
    for i in range(NUM_QUESTIONS):
        question = text[100 * i + 17 : 100 * i + 17 + QUESTION_TOKENS]
        started = time.perf_counter()
        done = server.generate(long + question, 1)
        warm_s.append(time.perf_counter() - started)
        cached.append(done["meta_info"]["cached_tokens"])
    return {
        "cold_prefill_s": cold_s,
        "warm_ttft_s": statistics.median(warm_s),
        "warm_ttft_all_s": warm_s,
        "cached_tokens": min(cached),
        "decode_tokens_per_s_long": _decode_rate(server, long),
        "decode_tokens_per_s_short": _decode_rate(server, long[:SHORT_TOKENS]),
        "greedy": greedy,
    }


def _decode_rate(server: EngineServer, prompt: list[int]) -> float:
    """Tokens per second after the first, from two generations over the same cached prompt."""
    server.generate(prompt, 1)
    times = []
    for count in (1, 1 + DECODE_TOKENS):
        started = time.perf_counter()
        server.generate(prompt, count)
        times.append(time.perf_counter() - started)
    return DECODE_TOKENS / (times[1] - times[0])


def main() -> int:
    """Measure stock first, then the plugin, and print the ratios."""
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, plugin in (("stock", False), ("plugin", True)):
            print(f"engine_bench: starting {name}", file=sys.stderr, flush=True)
            with running_engine(Path(folder), plugin=plugin) as server:
                results[name] = measure(server)
            shown = {k: v for k, v in results[name].items() if k != "greedy"}
            print(f"engine_bench: {name} {json.dumps(shown)}", file=sys.stderr, flush=True)
    stock, ours = results["stock"], results["plugin"]
    equal = sum(a == b for a, b in zip(stock["greedy"], ours["greedy"], strict=True))
    summary = {
        "prefix_tokens": PREFIX_TOKENS,
        "question_tokens": QUESTION_TOKENS,
        "warm_ttft_speedup": stock["warm_ttft_s"] / ours["warm_ttft_s"],
        "cold_prefill_speedup": stock["cold_prefill_s"] / ours["cold_prefill_s"],
        "decode_speedup_at_7000": ours["decode_tokens_per_s_long"] / stock["decode_tokens_per_s_long"],
        "decode_speedup_at_512": ours["decode_tokens_per_s_short"] / stock["decode_tokens_per_s_short"],
        "greedy_equal": equal,
        "greedy_different": len(stock["greedy"]) - equal,
        "greedy_total": len(stock["greedy"]),
    }
    for result in results.values():
        result.pop("greedy")
    print(json.dumps(summary | {"stock": stock, "plugin": ours}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
