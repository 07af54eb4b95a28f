"""The cascade, played out by really cutting tokens, against the one-shot allocation and the running minimum.

Here a layer is the list of its tokens, best first, and a cut drops the end of the list: nothing comes back. The package
never cuts while layers arrive, it computes what would be left.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake_sglang.budget import waterfill
from cake_sglang.cascade import one_shot_peak, reference_stages, running_minimum, trace, waterfill_stages
from cake_sglang.policies.base import Candidates
from cake_sglang.policies.compress import compress
from cake_sglang.policies.registry import make_policy
from cake_testing.policy_oracle_parts import random_prompt
from cake_testing.policy_oracles import adjust_budgets

WEIGHT = st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.integers(0, 9).map(float))
WEIGHTS = st.lists(WEIGHT, min_size=1, max_size=10)
# The published code computes in float32.
FLOAT32_WEIGHTS = st.lists(st.floats(2**-10, 2**10, width=32), min_size=1, max_size=10)
TOTAL, CAPACITY = st.integers(0, 2000), st.integers(0, 300)
Stages = Sequence[Sequence[int]]


def cut_while_layers_arrive(stages: Stages, num_candidates: int) -> list[list[list[int]]]:
    """What each layer still holds after each stage."""
    held: list[list[int]] = []
    history = []
    for stage in stages:
        held = [*held, list(range(num_candidates))]
        held = [tokens[:budget] for tokens, budget in zip(held, stage, strict=True)]
        history.append(held)
    return history


def sizes(history: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    return [[len(tokens) for tokens in held] for held in history]


@given(WEIGHTS, TOTAL, CAPACITY)
def test_with_waterfill_the_cascade_ends_with_the_tokens_of_the_one_shot_split(weights, total, capacity):
    history = cut_while_layers_arrive(waterfill_stages(weights, total, capacity), capacity)
    assert history[-1] == [list(range(budget)) for budget in waterfill(weights, total, capacity)]


@given(WEIGHTS, TOTAL, CAPACITY, st.data())
def test_a_minimum_changes_nothing_about_that(weights, total, capacity, data):
    minimum = data.draw(st.integers(0, min(capacity, total // len(weights))))
    history = cut_while_layers_arrive(waterfill_stages(weights, total, capacity, minimum), capacity)
    assert sizes(history)[-1] == waterfill(weights, total, capacity, minimum)


@given(WEIGHTS, TOTAL, CAPACITY)
def test_with_waterfill_no_layer_wants_a_token_back(weights, total, capacity):
    stages = waterfill_stages(weights, total, capacity)
    assert [len(stage) for stage in stages] == list(range(1, len(weights) + 1))
    for before, after in zip(stages, stages[1:], strict=False):
        assert all(new <= old for old, new in zip(before, after, strict=False))


@given(WEIGHTS, TOTAL, CAPACITY)
def test_with_waterfill_a_stage_is_at_most_a_token_per_layer_over_the_total(weights, total, capacity):
    stages = waterfill_stages(weights, total, capacity)
    for stage in stages:
        fair = min(total, capacity * len(stage))
        assert fair <= sum(stage) < fair + len(stage) or sum(stage) == fair
    assert sum(stages[-1]) == min(total, capacity * len(weights))


@given(FLOAT32_WEIGHTS, TOTAL, CAPACITY)
def test_with_reference_the_cascade_ends_at_the_running_minimum(weights, total, capacity):
    stages = reference_stages(weights, total, capacity)
    assert running_minimum(stages) == sizes(cut_while_layers_arrive(stages, capacity))


@given(FLOAT32_WEIGHTS, TOTAL, CAPACITY)
def test_the_reference_stages_are_the_published_allocation_of_the_layers_so_far(weights, total, capacity):
    published = [adjust_budgets(weights[: last + 1], total, capacity) for last in range(len(weights))]
    clamped = [[min(budget, capacity) for budget in budgets] for budgets in published]
    assert reference_stages(weights, total, capacity) == clamped


def test_a_layer_that_lost_tokens_does_not_get_them_back():
    assert running_minimum([[9], [4, 5], [6, 2, 1], [5, 3, 2, 7]]) == [[9], [4, 5], [4, 2, 1], [4, 2, 1, 7]]


@pytest.mark.parametrize("allocator", ["waterfill", "reference"])
@pytest.mark.parametrize("seed", range(4))
def test_a_policy_keeps_what_is_left_of_really_cut_layers(allocator: str, seed: int, observe: Callable[..., Any]):
    """The whole way: scores order the tokens of every head, budgets of every stage cut them."""
    prompt = random_prompt(seed, layers=6, probe_rows=())
    policy = make_policy("cake", window=8, allocator=allocator, tau2=0.5)
    layers = observe(prompt, policy)
    candidates = Candidates(prompt.start, prompt.length - 8, mean_kept=20 - 8)
    n, total = candidates.size, (20 - 8) * 6
    scores = [policy.observe(layer, candidates) for layer in layers]
    weights = [score.weight for score in scores]
    stages = (waterfill_stages if allocator == "waterfill" else reference_stages)(weights, total, n)
    left = cut_while_layers_arrive(stages, n)[-1]
    for score, ranks, kept in zip(scores, left, compress(policy, layers, 20).kept, strict=True):
        for head, columns in zip(score.score.tolist(), kept, strict=True):
            order = sorted(range(n), key=lambda j: (-head[j], j))
            expected = sorted(candidates.start + order[rank] for rank in ranks)
            assert columns.tolist() == expected + list(range(candidates.stop, prompt.length))


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(1, 40), st.integers(0, 9), st.integers(0, 50)
)
def test_the_trace_counts_the_tokens_that_cut_layers_hold(weights, per_layer, window, more):
    """Layer by layer: a layer arrives with its whole prompt, is held beside the others, and then all are cut."""
    num_candidates, total = per_layer + more, per_layer * len(weights)
    stages = waterfill_stages(weights, total, num_candidates)
    peak, before, held = 0, 0, []
    for tokens in cut_while_layers_arrive(stages, num_candidates):
        peak = max(peak, before + num_candidates + window)
        before = sum(len(layer) + window for layer in tokens)
        held.append(before)
    found = trace(stages, num_candidates + window, window)
    assert (found.peak, list(found.held)) == (peak, held)
    assert found.final == waterfill(weights, total, num_candidates)


def test_the_peak_of_a_cascade_worked_by_hand():
    """Prompt 100, window 10: 100 arrive, 60 + 10 stay; 100 more are 170; then 40, 30 and two windows; 100 more, 190."""
    found = trace([[60], [40, 30], [20, 35, 15]], 100, 10)
    assert found.stages == ((60,), (40, 30), (20, 30, 15))
    assert found.held == (70, 90, 95)
    assert found.peak == 190
    assert found.final == [20, 30, 15]
    assert one_shot_peak(3, 100) == 300


def test_a_single_layer_peaks_at_its_prompt_either_way():
    assert trace([[30]], 100, 10).peak == one_shot_peak(1, 100) == 100


@given(FLOAT32_WEIGHTS, st.integers(1, 60), st.integers(2, 16), st.integers(1, 60))
def test_the_published_cascade_stays_within_its_memory_bound(weights, per_layer, window, more):
    """policies.md 1.4: T + (m + 1) W after stage m, the prompt more before the cut."""
    total, num_tokens = per_layer * len(weights), per_layer + more + window
    stages = reference_stages(weights, total, num_tokens - window)
    found = trace(stages, num_tokens, window)
    assert all(held <= total + (stage + 1) * window for stage, held in enumerate(found.held))
    assert found.peak <= total + (len(weights) - 1) * window + num_tokens
