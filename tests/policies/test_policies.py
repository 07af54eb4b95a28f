"""Every policy keeps what its formulas say, token by token: compared with oracles in plain loops and float64.

The inputs are random, so scores tie only where maximum pooling makes plateaus, where a floor or a forced token lifts
several to one value, or between the like heads of ``tova`` and ``streaming_llm``; both sides take the lower column.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from cake_sglang.policies.compress import compress
from cake_sglang.policies.registry import POLICIES, make_policy
from cake_testing.policy_oracle_parts import Kept, Prompt, random_prompt
from cake_testing.policy_oracles import ORACLES

WINDOW = 8
BUDGET = 20
# Policy, fields; the oracle gets the same fields as keywords.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("full", {}),
    ("streaming_llm", {}),
    ("streaming_llm", {"n_sink": 0}),
    ("tova", {}),
    ("h2o", {}),
    ("h2o", {"recent": 3, "group": "max"}),
    ("snapkv", {"window": WINDOW}),
    ("snapkv", {"window": WINDOW, "kernel": 7, "pooling": "max"}),
    ("snapkv", {"window": WINDOW, "kernel": 7, "pooling": "max", "group_first": True}),
    ("snapkv", {"window": WINDOW, "kernel": 1, "group": "max"}),
    ("snapkv", {"window": WINDOW, "window_source": "probe"}),
    ("snapkv", {"window": WINDOW, "window_source": "probes"}),
    ("pyramidkv", {}),
    ("pyramidkv", {"allocator": "reference"}),
    ("pyramidkv", {"beta": 3, "window": 6, "kernel": 5, "pooling": "avg"}),
    ("pyramidkv", {"beta": 3, "allocator": "reference"}),
    ("adakv", {"window": WINDOW}),
    ("adakv", {"window": WINDOW, "floor_alpha": 0.0}),
    ("adakv", {"window": WINDOW, "floor_alpha": 0.7, "group": "max"}),
    ("adakv", {"window": WINDOW, "normalize": True}),
    ("adakv", {"window": WINDOW, "allocator": "reference"}),
    ("adakv", {"window": WINDOW, "allocator": "reference", "normalize": True, "floor_alpha": 0.5}),
    ("lava", {"window": WINDOW}),
    ("lava", {"window": WINDOW, "floor_alpha": 0.0}),
    ("lava", {"window": WINDOW, "kernel": 3, "pooling": "avg"}),
    ("lava", {"window": WINDOW, "allocator": "reference"}),
    ("lava", {"window": WINDOW, "allocator": "reference", "floor_alpha": 0.5}),
    ("cake", {"window": WINDOW}),
    ("cake", {"window": WINDOW, "gamma": 0.0, "tau1": 0.5, "tau2": 1.5, "kernel": 1}),
    ("cake", {"window": WINDOW, "gamma": 5.0, "tau1": 1.6, "tau2": 0.4}),
    ("cake", {"window": WINDOW, "allocator": "reference", "tau2": 0.4}),
    ("cake", {"window": WINDOW, "allocator": "reference", "tau2": 0.3, "cascade": False}),
    ("cake", {"window": WINDOW, "window_source": "probe"}),
    ("cake", {"window": WINDOW, "window_source": "probes"}),
    ("defensive", {"window": WINDOW}),
    ("defensive", {"window": WINDOW, "forced_mass": 0.0, "kernel": 3}),
    ("defensive", {"window": WINDOW, "forced_mass": 0.5}),
    ("defensive", {"window": WINDOW, "window_source": "probes"}),
    ("layer_defensive", {"window": WINDOW}),
    ("layer_defensive", {"window": WINDOW, "forced_mass": 0.4}),
    ("probe_max", {"window": WINDOW}),
    ("cake_defensive", {"window": WINDOW}),
    ("cake_defensive", {"window": WINDOW, "allocator": "reference", "tau1": 2.0, "tau2": 0.6}),
    ("kvzip", {}),
    ("kvzip", {"recent": 4, "value_weight": True}),
]


def kept_by(policy: str, prompt: Prompt, budget: int, observe: Callable[..., Any], **fields: Any) -> Kept:
    made = make_policy(policy, **fields)
    selection = compress(made, observe(prompt, made), budget)
    return [[columns.tolist() for columns in layer] for layer in selection.kept]


def prompt_for(policy: str, seed: int, **sizes: Any) -> Prompt:
    """KVzip reads a repetition in chunks, the others may read two probes; columns 0 to 4 are a shared system prompt."""
    return random_prompt(seed, repeat_chunk=29 if policy == "kvzip" else 0, **sizes)


def test_every_policy_has_an_oracle_but_the_random_one():
    assert set(ORACLES) == set(POLICIES) - {"random"}
    assert {name for name, _ in CASES} == set(ORACLES)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("policy", "fields"), CASES)
def test_the_kept_tokens_are_those_of_the_formulas(
    policy: str, fields: dict[str, Any], seed: int, observe: Callable[..., Any]
):
    prompt = prompt_for(policy, seed)
    assert kept_by(policy, prompt, BUDGET, observe, **fields) == ORACLES[policy](prompt, BUDGET, **fields)


@pytest.mark.parametrize("policy", sorted(ORACLES))
def test_the_defaults_are_the_papers(policy: str, observe: Callable[..., Any]):
    prompt = prompt_for(policy, 3, layers=2, length=105, start=0)
    assert kept_by(policy, prompt, 48, observe) == ORACLES[policy](prompt, 48)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (6, 3)])
@pytest.mark.parametrize("policy", sorted(set(ORACLES) - {"full", "streaming_llm"}))
def test_groups_of_any_size_are_reduced_to_their_kv_head(
    policy: str, heads: int, kv_heads: int, observe: Callable[..., Any]
):
    fields = {"window": WINDOW} if "window" in ORACLES[policy].__code__.co_varnames else {}
    prompt = prompt_for(policy, 4, layers=2, heads=heads, kv_heads=kv_heads, length=48, start=3)
    assert kept_by(policy, prompt, 16, observe, **fields) == ORACLES[policy](prompt, 16, **fields)


@pytest.mark.parametrize("budget", [WINDOW, WINDOW + 1, 60, 66])
@pytest.mark.parametrize("policy", ["cake", "snapkv", "pyramidkv", "adakv", "lava", "layer_defensive"])
def test_budgets_from_the_window_alone_to_all_but_one_token(policy: str, budget: int, observe: Callable[..., Any]):
    prompt = prompt_for(policy, 5)
    kept = kept_by(policy, prompt, budget, observe, window=WINDOW)
    assert kept == ORACLES[policy](prompt, budget, window=WINDOW)
    assert sum(len(columns) for layer in kept for columns in layer) == budget * 6


@pytest.mark.parametrize("budget", [50, 62])
@pytest.mark.parametrize("policy", ["pyramidkv", "cake", "lava", "adakv"])
def test_a_generous_budget_of_the_published_code_stops_at_what_a_layer_has(
    policy: str, budget: int, observe: Callable[..., Any]
):
    fields = {"window": WINDOW, "allocator": "reference"} | ({"floor_alpha": 0.5} if policy == "lava" else {})
    prompt = prompt_for(policy, 6)
    assert kept_by(policy, prompt, budget, observe, **fields) == ORACLES[policy](prompt, budget, **fields)


def test_float32_keys_keep_the_same_tokens_as_float64_ones(observe: Callable[..., Any]):
    prompt = random_prompt(7)
    policy = make_policy("cake", window=WINDOW)
    single = [layer_in(torch.float32, layer) for layer in observe(prompt, policy)]
    kept = [[columns.tolist() for columns in layer] for layer in compress(policy, single, BUDGET).kept]
    assert kept == ORACLES["cake"](prompt, BUDGET, window=WINDOW)


def layer_in(dtype: torch.dtype, layer: Any) -> Any:
    windows = tuple(replace(window, q=window.q.to(dtype)) for window in layer.windows)
    return replace(layer, k=layer.k.to(dtype), v=layer.v.to(dtype), w_o=layer.w_o.to(dtype), windows=windows)
