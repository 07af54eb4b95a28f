"""The control keeps sinks, the last tokens, and others by chance alone."""

from collections.abc import Callable
from typing import Any

from cake_sglang.policies.compress import compress
from cake_sglang.policies.random_policy import RandomPolicy
from cake_testing.policy_oracle_parts import Kept, random_prompt

SINKS, WINDOW, BUDGET, LENGTH = 2, 6, 28, 108


def kept_by(seed: int, observe: Callable[..., Any], layers: int = 4) -> Kept:
    policy = RandomPolicy(n_sink=SINKS, window=WINDOW, seed=seed)
    prompt = random_prompt(0, layers=layers, kv_heads=3, length=LENGTH, start=0, probe_rows=())
    return [[c.tolist() for c in layer] for layer in compress(policy, observe(prompt, policy), BUDGET).kept]


def test_sinks_and_the_last_tokens_always_stay_and_every_head_keeps_the_budget(observe: Callable[..., Any]):
    heads = [columns for layer in kept_by(1, observe) for columns in layer]
    assert all(columns[:SINKS] == [0, 1] for columns in heads)
    assert all(columns[-WINDOW:] == list(range(LENGTH - WINDOW, LENGTH)) for columns in heads)
    assert [len(columns) for columns in heads] == [BUDGET] * 12


def test_the_same_seed_keeps_the_same_tokens_and_another_one_others(observe: Callable[..., Any]):
    assert kept_by(5, observe) == kept_by(5, observe)
    assert kept_by(5, observe) != kept_by(6, observe)


def test_with_room_for_nothing_else_sinks_and_the_last_tokens_are_all(observe: Callable[..., Any]):
    policy = RandomPolicy(n_sink=SINKS, window=WINDOW, seed=3)
    prompt = random_prompt(0, layers=8, kv_heads=3, length=LENGTH, start=0, probe_rows=())
    heads = [c.tolist() for layer in compress(policy, observe(prompt, policy), SINKS + WINDOW).kept for c in layer]
    assert heads == [[0, 1, *range(LENGTH - WINDOW, LENGTH)]] * 24


def test_layers_and_heads_differ(observe: Callable[..., Any]):
    heads = [tuple(columns) for layer in kept_by(2, observe) for columns in layer]
    assert len(set(heads)) == len(heads)


def test_every_token_between_has_the_same_chance(observe: Callable[..., Any]):
    """20 of 100 stay in each of 1,200 draws: 240 of each expected, and five standard deviations are 70."""
    counts = [0] * LENGTH
    for seed in range(25):
        for layer in kept_by(seed, observe, layers=16):
            for columns in layer:
                for column in columns:
                    counts[column] += 1
    between = counts[SINKS : LENGTH - WINDOW]
    assert sum(between) == 1200 * 20
    assert min(between) > 240 - 70 and max(between) < 240 + 70
