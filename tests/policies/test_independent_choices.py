"""Window source, score and allocator are chosen independently; a named policy is one combination."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from cake_sglang.errors import PolicyError
from cake_sglang.observation import LayerObservation, Window
from cake_sglang.policies.base import Candidates, LayerScore
from cake_sglang.policies.cake import Cake
from cake_sglang.policies.cake_defensive import CakeDefensive
from cake_sglang.policies.combined import CombinedPolicy
from cake_sglang.policies.compress import Compressor, compress, split_range
from cake_sglang.policies.defensive import Defensive
from cake_sglang.policies.query_source import QuerySource, needs_projection, query_source
from cake_sglang.policies.registry import combine, make_policy
from cake_sglang.policies.snapkv import SnapKV
from cake_sglang.selection import Selection

LAYERS, TOKENS, WINDOW, BUDGET = 3, 80, 8, 24


def prompt(source: str = "last") -> list[LayerObservation]:
    """Three layers whose attention differs in sharpness, so that CAKE's budgets differ."""
    generator = torch.Generator().manual_seed(5)
    layers = []
    for layer in range(LAYERS):
        k = torch.randn(2, TOKENS + 12, 8, generator=generator)
        passes = 2 if source == "probes" else 1
        first = TOKENS - WINDOW if source == "last" else TOKENS
        windows = tuple(
            Window(
                torch.randn(4, WINDOW, 8, generator=generator) * (layer + 1),
                torch.arange(first, first + WINDOW),
                attended=None if source == "last" else ((0, TOKENS), (TOKENS, TOKENS + WINDOW)),
            )
            for _ in range(passes)
        )
        v, w_o = torch.randn(k.shape, generator=generator), torch.randn(4, 8, 16, generator=generator)
        layers.append(LayerObservation(layer, k, windows, v=v, w_o=w_o, compressed=(0, TOKENS)))
    return layers


def kept(selection: Selection) -> list[list[list[int]]]:
    return [[columns.tolist() for columns in layer] for layer in selection.kept]


@pytest.mark.parametrize("source", ["last", "probe", "probes"])
@pytest.mark.parametrize("allocator", ["waterfill", "reference"])
@pytest.mark.parametrize("name", ["cake", "snapkv", "pyramidkv", "adakv", "lava", "defensive", "layer_defensive"])
def test_every_source_goes_with_every_score_and_allocator(name: str, source: str, allocator: str) -> None:
    policy = make_policy(name, window=WINDOW, window_source=source, allocator=allocator)
    selection = compress(policy, prompt(source), BUDGET)
    if allocator == "waterfill":
        assert sum(map(sum, selection.counts)) == BUDGET * LAYERS * 2
    tail = list(range(TOKENS - WINDOW, TOKENS))
    assert all(head[-WINDOW:] == tail for layer in kept(selection) for head in layer)


def test_a_policys_own_scores_and_budgets_combined_are_the_policy() -> None:
    for policy in (Cake(window=WINDOW), Cake(window=WINDOW, allocator="reference"), Defensive(window=WINDOW)):
        assert kept(compress(combine(policy, policy), prompt(), BUDGET)) == kept(compress(policy, prompt(), BUDGET))


def test_cakes_budgets_with_snapkvs_scores_take_each_from_its_own() -> None:
    cake, snapkv = Cake(window=WINDOW), SnapKV(window=WINDOW)
    combined = compress(combine(snapkv, cake), prompt(), BUDGET)
    assert combined.counts == compress(cake, prompt(), BUDGET).counts
    assert len({row[0] for row in combined.counts}) == LAYERS
    for layer, row in zip(prompt(), combined.counts, strict=True):
        # SnapKV alone on this layer, with the layer's own number of tokens as its budget.
        (alone,) = compress(snapkv, [layer], row[0]).kept
        assert [columns.tolist() for columns in combined.kept[layer.layer]] == [columns.tolist() for columns in alone]


def test_the_scorer_splits_a_layer_over_its_heads() -> None:
    adakv = make_policy("adakv", window=WINDOW)
    combined = compress(combine(adakv, Cake(window=WINDOW)), prompt(), BUDGET)
    assert any(first != second for first, second in combined.counts)
    for layer, row in zip(prompt(), combined.counts, strict=True):
        assert compress(adakv, [layer], sum(row) // 2).counts == [row]


def test_the_budgeter_splits_by_its_own_scores_and_its_weights_are_reported() -> None:
    budgeter = make_policy("layer_defensive", window=WINDOW)
    rows = [sum(row) for row in compress(budgeter, prompt(), BUDGET).counts]
    combined = compress(combine(SnapKV(window=WINDOW), budgeter), prompt(), BUDGET)
    assert [sum(row) for row in combined.counts] == rows and len(set(rows)) > 1

    compressors = [
        Compressor(policy, BUDGET)
        for policy in (combine(SnapKV(window=WINDOW), Cake(window=WINDOW)), Cake(window=WINDOW))
    ]
    for layer in prompt():
        for compressor in compressors:
            compressor.add(layer)
    assert compressors[0].weights == compressors[1].weights


def test_cake_defensive_is_cakes_layer_budgets_with_the_defensive_score() -> None:
    """Without forced tokens, whose number follows the mean budget and not the layer's."""
    selection = compress(CakeDefensive(window=WINDOW, forced_mass=0.0), prompt(), BUDGET)
    by_cake = compress(Cake(window=WINDOW), prompt(), BUDGET).counts
    assert [sum(row) for row in selection.counts] == [sum(row) for row in by_cake]
    for layer, row in zip(prompt(), selection.counts, strict=True):
        # One layer's defensive selection depends on nothing but the number of its rows.
        (alone,) = compress(Defensive(window=WINDOW, forced_mass=0.0), [layer], sum(row) // 2).kept
        assert [columns.tolist() for columns in selection.kept[layer.layer]] == [columns.tolist() for columns in alone]


def test_a_refinement_looks_again_at_another_policys_scores() -> None:
    seen: list[tuple[int, Candidates]] = []

    def last_first(score: LayerScore, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        seen.append((layer.layer, candidates))
        return replace(score, score=torch.arange(candidates.size).expand(2, -1).float())

    policy = CombinedPolicy(scorer=SnapKV(window=WINDOW), budgeter=SnapKV(window=WINDOW), refine=last_first)
    assert kept(compress(policy, prompt(), BUDGET)) == [[list(range(TOKENS - BUDGET, TOKENS))] * 2] * LAYERS
    assert seen == [(layer, Candidates(0, TOKENS - WINDOW, BUDGET - WINDOW)) for layer in range(LAYERS)]


@pytest.mark.parametrize("fields", [{"allocator": "reference"}, {"minimum": 3}])
def test_what_the_halves_decide_is_not_set_on_their_combination(fields: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="expected the defaults; set them in the budgeter"):
        CombinedPolicy(scorer=SnapKV(window=WINDOW), budgeter=Cake(window=WINDOW), **fields)


def test_halves_that_protect_different_tokens_or_read_different_queries_are_refused() -> None:
    with pytest.raises(PolicyError, match="snapkv protects 8 tokens and cake 4; they must be equal"):
        compress(combine(SnapKV(window=8), Cake(window=4)), prompt(), BUDGET)
    with pytest.raises(PolicyError, match="snapkv reads last rows and cake probe rows"):
        query_source(combine(SnapKV(window=8), Cake(window=8, window_source="probe")))


def test_the_largest_indicator_over_the_probes_counts() -> None:
    policy = SnapKV(window=WINDOW, window_source="probes", kernel=1)
    both = prompt("probes")[0]
    # No pooling and one query head per KV head, so that nothing comes after the maximum.
    both = replace(both, windows=tuple(replace(window, q=window.q[:2]) for window in both.windows), w_o=None)
    candidates, _ = split_range(policy, both, 1, BUDGET)
    scores = [policy.observe(replace(both, windows=(window,)), candidates).score for window in both.windows]
    assert torch.equal(policy.observe(both, candidates).score, torch.maximum(*scores))
    assert not torch.equal(scores[0], scores[1])


@pytest.mark.parametrize(
    ("name", "fields", "source", "projection"),
    [
        ("cake", {}, QuerySource("last", 32), False),
        ("cake", {"window": 5}, QuerySource("last", 5), False),
        ("cake", {"window_source": "probe"}, QuerySource("probe"), False),
        ("probe_max", {}, QuerySource("probes"), True),
        ("layer_defensive", {}, QuerySource("last", 32), True),
        ("kvzip", {}, QuerySource("repeat"), False),
        ("kvzip", {"value_weight": True}, QuerySource("repeat"), True),
        ("h2o", {}, QuerySource("all"), False),
        ("tova", {}, QuerySource("last", 1), False),
        ("streaming_llm", {}, QuerySource("none"), False),
        ("random", {}, QuerySource("none"), False),
    ],
)
def test_a_policy_says_which_queries_it_reads(
    name: str, fields: dict[str, Any], source: QuerySource, projection: bool
) -> None:
    policy = make_policy(name, **fields)
    assert query_source(policy) == source
    assert needs_projection(policy) is projection


@pytest.mark.parametrize("order", [lambda a, b: (a, b), lambda a, b: (b, a)])
def test_a_combination_reads_what_either_half_reads(order: Callable[..., Any]) -> None:
    policy = combine(*order(make_policy("random"), make_policy("defensive")))
    assert query_source(policy) == QuerySource("last", 32)
    assert needs_projection(policy)
    assert not query_source(policy).extra_pass


# Not cake_defensive: the mean budget decides how many tokens are forced, also in layers that are given less.
@pytest.mark.parametrize("name", ["cake", "defensive", "layer_defensive", "snapkv", "lava", "adakv"])
def test_a_larger_budget_keeps_all_that_a_smaller_one_kept(name: str) -> None:
    policy = make_policy(name, window=WINDOW)
    before: list[list[list[int]]] | None = None
    for budget in range(WINDOW, TOKENS):
        after = kept(compress(policy, prompt(), budget))
        if before is not None:
            pairs = zip(itertools.chain(*before), itertools.chain(*after), strict=True)
            assert all(set(few) <= set(many) for few, many in pairs), budget
        before = after
