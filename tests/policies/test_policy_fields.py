"""Bad input: every refusal names the value and what is allowed, and short prompts are kept whole."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from cake_sglang.errors import BudgetError, PolicyError
from cake_sglang.observation import LayerObservation, Window
from cake_sglang.policies.base import Candidates, KVPolicy, LayerScore
from cake_sglang.policies.cake import Cake
from cake_sglang.policies.compress import compress
from cake_sglang.policies.registry import POLICIES, make_policy

TOKENS, ROWS = 60, 8


def prompt(tokens: int = TOKENS, rows: int = ROWS, **changes: Any) -> LayerObservation:
    """One layer of a random prompt: 4 query heads, 2 KV heads, D = 8."""
    generator = torch.Generator().manual_seed(1)
    rows = min(rows, tokens)
    window = Window(torch.randn(4, rows, 8, generator=generator), torch.arange(tokens - rows, tokens))
    values: dict[str, Any] = {
        "layer": 0,
        "k": torch.randn(2, tokens, 8, generator=generator),
        "v": torch.randn(2, tokens, 8, generator=generator),
        "w_o": torch.randn(4, 8, 16, generator=generator),
        "windows": (window,),
    }
    return LayerObservation(**{**values, **changes})


def with_q(**changes: Any) -> tuple[Window, ...]:
    return (replace(prompt().windows[0], **changes),)


def in_half(layer: LayerObservation) -> LayerObservation:
    (window,) = layer.windows
    return replace(layer, k=layer.k.half(), windows=(replace(window, q=window.q.half()),), v=None, w_o=None)


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("budget", [-1, 0, 40.0, "40", True, None, float("nan")])
def test_a_budget_that_is_no_positive_integer_is_refused(name: str, budget: object) -> None:
    with pytest.raises(BudgetError) as caught:
        compress(make_policy(name), [prompt()], budget)  # type: ignore[arg-type]
    assert f"budget of {name} is {budget!r}, expected an integer of at least" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("cake", {"window": 1}, "window is 1, expected an integer of at least 2"),
        ("snapkv", {"window": -4}, "window is -4, expected an integer of at least 2"),
        ("cake", {"window": 8.0}, "window is 8.0, expected an integer of at least 2"),
        ("cake", {"window": True}, "window is True, expected an integer of at least 2"),
        ("cake", {"kernel": 4}, "kernel is 4, expected an odd integer from 1 to 1023"),
        ("cake", {"kernel": 0}, "kernel is 0, expected an integer from 1 to 1023"),
        ("cake", {"kernel": 10**12 + 1}, "kernel is 1000000000001, expected an integer from 1 to 1023"),
        ("cake", {"gamma": 10**400}, "gamma is 10{400}, expected a finite number of at least 0"),
        ("cake", {"gamma": -0.5}, "gamma is -0.5, expected a finite number of at least 0"),
        ("cake", {"gamma": float("nan")}, "gamma is nan, expected a finite number of at least 0"),
        ("cake", {"tau1": 0}, "tau1 is 0, expected a finite number above 0"),
        ("cake", {"tau2": float("inf")}, "tau2 is inf, expected a finite number above 0"),
        ("cake", {"cascade": 1}, "cascade is 1, expected true or false"),
        ("cake", {"pooling": "sum"}, "pooling is 'sum'; known: avg, max"),
        ("cake", {"group": "median"}, "group is 'median'; .*known: max, mean"),
        ("cake", {"window_source": "prob"}, "window_source is 'prob'; did you mean 'probe' or 'probes'"),
        ("cake", {"allocator": "waterfal"}, "allocator is 'waterfal'; did you mean 'waterfill'"),
        ("cake", {"minimum": -1}, "minimum is -1, expected an integer of at least 0"),
        ("cake", {"minimum": 4, "allocator": "reference"}, "minimum is 4, the reference allocator knows none"),
        ("h2o", {"recent": 0}, "recent is 0, expected an integer of at least 1"),
        ("h2o", {"group": "median"}, "group is 'median'; .*known: max, mean"),
        ("kvzip", {"recent": -1}, "recent is -1, expected an integer of at least 0"),
        ("kvzip", {"value_weight": "yes"}, "value_weight is 'yes', expected true or false"),
    ],
)
def test_a_field_out_of_range_is_refused(name: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        make_policy(name, **fields)


def test_unknown_policies_and_fields_are_refused_with_the_near_names() -> None:
    with pytest.raises(PolicyError, match="unknown policy 'snapvk'; did you mean 'snapkv'"):
        make_policy("snapvk")
    with pytest.raises(PolicyError, match="unknown policy 'zzz'; known: adakv, cake, "):
        make_policy("zzz")
    with pytest.raises(PolicyError, match="policy 'cake' has no field 'gama'; did you mean 'gamma'"):
        make_policy("cake", gama=3)
    with pytest.raises(PolicyError, match="policy 'cake' has no field 'name'"):
        make_policy("cake", name="x")
    with pytest.raises(PolicyError, match="policy 'cake_defensive' has no field 'scorer'"):
        make_policy("cake_defensive", scorer=Cake())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": torch.full((2, TOKENS, 8), float("nan"))}, "k holds NaN or infinity"),
        ({"v": torch.full((2, TOKENS, 8), float("inf"))}, "v holds NaN or infinity"),
        ({"w_o": torch.full((4, 8, 16), float("-inf"))}, "w_o holds NaN or infinity"),
        ({"windows": with_q(q=torch.full((4, ROWS, 8), float("nan")))}, r"windows\[0\].q holds NaN or infinity"),
        (
            {"k": torch.zeros(3, TOKENS, 8), "v": None, "w_o": None},
            r"windows\[0\].q has 4 query heads, expected a multiple of the 3",
        ),
        ({"k": torch.zeros(2, TOKENS, 8, dtype=torch.int32)}, "k is torch.int32, expected one of torch.float32"),
        (
            {"v": torch.zeros(2, TOKENS, 8, dtype=torch.bfloat16)},
            "mixed dtypes: v is torch.bfloat16, k is torch.float32",
        ),
        ({"w_o": torch.zeros(4, 8, 16, dtype=torch.float64)}, "mixed dtypes: w_o is torch.float64"),
        ({"windows": with_q(q=torch.zeros(4, ROWS, 8).half())}, r"mixed dtypes: windows\[0\].q is torch.float16"),
        ({"v": torch.zeros(2, TOKENS, 8, device="meta")}, "mixed devices: v is on meta, k is on cpu"),
        ({"windows": with_q(q=torch.zeros(4, ROWS, 8, device="meta"))}, r"mixed devices: windows\[0\].q is on meta"),
        ({"windows": with_q(q_pos=torch.arange(ROWS, device="meta"))}, r"mixed devices: windows\[0\].q_pos is on meta"),
        ({"windows": with_q(q_pos=torch.arange(ROWS).int())}, r"windows\[0\].q_pos is torch.int32 \[8\], expected"),
        ({"windows": with_q(q_pos=torch.arange(ROWS + 1))}, r"q_pos is torch.int64 \[9\], expected torch.int64 \[8\]"),
        ({"k": torch.zeros(2, 0, 8)}, r"k has shape \[2, 0, 8\], expected \[Hkv, N, D\]"),
        ({"v": torch.zeros(2, TOKENS - 1, 8)}, r"v has shape \[2, 59, 8\], expected"),
        ({"w_o": torch.zeros(2, 8, 16)}, r"w_o has shape \[2, 8, 16\], expected .* \[4, 8, hidden\]"),
        ({"compressed": (10, TOKENS + 1)}, r"compressed is \(10, 61\), expected 0 <= start < stop <= 60"),
        ({"compressed": (10, 10)}, r"compressed is \(10, 10\), expected 0 <= start < stop"),
        ({"compressed": (0.5, 50)}, r"compressed is \(0.5, 50\), expected two integers"),
        ({"compressed": (0,)}, r"compressed is \(0,\), expected two integers"),
        ({"scale": 0.0}, "scale is 0, expected a finite number above 0"),
        ({"softcap": -1.0}, "softcap is -1, expected a finite number above 0"),
        ({"layer": -1}, "layer is -1, expected an integer of at least 0"),
        ({"k_pos": torch.arange(TOKENS - 1)}, r"k_pos is torch.int64 \[59\], expected torch.int64 \[60\]"),
        ({"windows": with_q(attended=((0, 70),))}, r"windows\[0\].attended is \(0, 70\), expected 0 <= start"),
        ({"windows": with_q(attended=((9, 20), (0, 10)))}, "expected ranges in order, without overlap"),
        ({"windows": with_q(attended=((0, 20),), scored=(10, 30))}, "expected a part of one of"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        prompt(**changes)


@pytest.mark.parametrize(
    ("policy", "layers", "message"),
    [
        (Cake(window=4), [prompt()], r"windows\[0\] has 8 rows, expected 2 to 4"),
        (Cake(), [prompt(windows=())], "needs exactly one window, got 0"),
        (Cake(), [prompt(windows=with_q(q_pos=torch.arange(ROWS)))], "covers positions 0 to 7, expected the last 8"),
        (Cake(), [prompt(rows=1)], "has 1 rows, expected at least 2"),
        (Cake(window_source="probe"), [prompt()], "a probe starts above 59"),
        (Cake(), [prompt(), prompt(tokens=50)], "layer 0 has 2 KV heads and columns \\(0, 50\\)"),
        (Cake(), [prompt(), in_half(prompt(layer=1))], "layer 1 is torch.float16 .* layer 0 is torch.float32 on cpu"),
        (Cake(), [prompt(layer=1), prompt(layer=1)], "layer 1 follows layer 1, expected layers in ascending order"),
        (Cake(), [], "layers is empty"),
        (make_policy("lava"), [prompt(v=None)], "lava needs v, layer 0 has none"),
        (make_policy("defensive"), [prompt(w_o=None)], "defensive needs w_o, layer 0 has none"),
        (make_policy("h2o"), [prompt()], "h2o needs the queries of all 60 tokens, layer has 8"),
        (make_policy("tova"), [prompt(windows=())], "tova needs one window with the last row, got none"),
        (make_policy("tova"), [prompt(compressed=(0, 50))], "last query row is at position 59, expected 49"),
        (make_policy("kvzip"), [prompt(windows=with_q(scored=(0, 30)))], "columns 0 to 60, none scores 30"),
        (make_policy("kvzip", recent=4), [prompt(windows=with_q(scored=(0, 30)))], "columns 0 to 56, none scores 30"),
        (make_policy("kvzip", value_weight=True), [prompt(w_o=None)], "kvzip with value_weight needs v and w_o"),
    ],
)
def test_a_policy_refuses_what_it_cannot_read(policy: KVPolicy, layers: list[LayerObservation], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        compress(policy, layers, 40)


@pytest.mark.parametrize(
    ("score", "weight", "message"),
    [
        (torch.full((2, 52), float("nan")), 1.0, "score of layer 0 holds NaN or infinity in 104 places"),
        (torch.zeros(2, 51), 1.0, r"score of layer 0 has shape \[2, 51\], expected \[2, 52\]"),
        (torch.zeros(2, 52), -1.0, "weight of layer 0 is -1.0, expected a finite number of at least 0"),
        (torch.zeros(2, 52), float("inf"), "weight of layer 0 is inf"),
    ],
)
def test_scores_and_weights_of_a_new_policy_are_checked(score: torch.Tensor, weight: float, message: str) -> None:
    class New(Cake):
        def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
            return LayerScore(score, weight)

    with pytest.raises(PolicyError, match=message):
        compress(New(), [prompt()], 40)


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize(("tokens", "budget"), [(20, 40), (40, 40), (1, 40), (7, 64)])
def test_a_prompt_within_the_budget_is_kept_whole_as_by_full(name: str, tokens: int, budget: int) -> None:
    kept = compress(make_policy(name), [prompt(tokens)], budget)
    assert kept.whole
    assert [columns.tolist() for columns in kept.kept[0]] == [list(range(tokens))] * 2


def test_a_prompt_shorter_than_the_window_is_kept_whole_whatever_the_budget() -> None:
    for budget in (1, 10, 30, 32, 1000):
        assert compress(Cake(window=32), [prompt(30, rows=30)], budget).whole
    assert compress(Cake(window=32), [prompt(32, rows=32)], 10).whole
    with pytest.raises(BudgetError, match="budget of cake is 10, expected an integer of at least 32"):
        compress(Cake(window=32), [prompt(33, rows=32)], 10)


def test_the_published_codes_threshold_leaves_prompts_up_to_budget_and_window_whole() -> None:
    """policies.md 1.9: the published code compares the prompt's length with the budget after the window is added."""
    loose = Cake(strict_budget=False)
    assert compress(loose, [prompt(48)], 40).whole
    assert not compress(loose, [prompt(49)], 40).whole
    assert not compress(Cake(), [prompt(41)], 40).whole
