"""The quirks of CAKE's published code that the ``reference`` allocator and CAKE's own fields reproduce, one test each.

| quirk | test |
|---|---|
| the window is not part of what is split | test_the_window_comes_on_top_of_every_layers_budget |
| dispersion and shift are sums, over query heads too; variance divides by W - 1 | test_dispersion_and_shift_... |
| pooling by 5 after mean + gamma * variance, before the group | test_pooling_follows_the_indicator_... |
| shares are cut off, the rest goes one by one to the lowest layers | test_shares_are_cut_off_... |
| what the cap cuts off is spread equally, not by preference | test_what_the_cap_cuts_off_... |
| nothing is capped again, the surplus is lost | test_nothing_is_capped_again_... |
| a layer may get nothing | test_a_layer_may_get_nothing |
| too much is taken back equally | test_what_rounding_gave_too_much_..., test_a_layer_with_a_single_token_... |
| shares are float32, summed in layer order | test_shares_are_float32_summed_in_layer_order |
| the total counts all layers from the first stage on | test_the_first_layers_share_the_budget_of_all |
| budgets may rise from stage to stage | test_a_remainder_may_wander..., test_a_saturated_layer_may_raise... |
| the cascade keeps the running minimum; without it the last budgets | test_the_cascade_flag_... |
| prompts up to budget and window stay whole | test_prompts_up_to_budget_and_window_stay_whole |

Eviction while decoding is in ``test_decode_eviction.py``. Statistics in half precision are not reproduced: ours are
float32.
Expected values are worked by hand from the published rules.
"""

import math

import pytest
import torch

from cake_sglang import cascade
from cake_sglang.budget_reference import allocate, proportional_shares, stages
from cake_sglang.errors import BudgetError
from cake_sglang.observation import LayerObservation, Window
from cake_sglang.policies.base import BudgetShape, Candidates
from cake_sglang.policies.cake import Cake
from cake_sglang.policies.compress import compress


def layer_of(tokens: int, rows: int, group: int = 2, index: int = 0) -> LayerObservation:
    generator = torch.Generator().manual_seed(index)
    window = Window(
        torch.randn(2 * group, rows, 8, generator=generator, dtype=torch.float64), torch.arange(tokens - rows, tokens)
    )
    return LayerObservation(index, torch.randn(2, tokens, 8, generator=generator, dtype=torch.float64), (window,))


def attention_of(layer: LayerObservation) -> torch.Tensor:
    """[Hq, W, n] softmax over all keys that a row sees; the window's own columns are cut off afterwards."""
    (window,) = layer.windows
    k = layer.k.repeat_interleave(window.q.shape[0] // 2, dim=0)
    logits = window.q @ k.transpose(1, 2) / math.sqrt(8)
    later = torch.arange(k.shape[1])[None] > window.q_pos[:, None]
    return logits.masked_fill(later, -torch.inf).softmax(-1)[:, :, : -window.q.shape[1]]


def test_the_window_comes_on_top_of_every_layers_budget() -> None:
    layers = [layer_of(60, 8, index=index) for index in range(3)]
    selection = compress(Cake(window=8, allocator="reference", cascade=False), layers, 20)
    assert sum(selection.layer_budgets) == (20 - 8) * 3
    assert [row[0] for row in selection.counts] == [budget + 8 for budget in selection.layer_budgets]


def test_dispersion_and_shift_sum_over_heads_rows_and_columns_and_variance_divides_by_one_row_less() -> None:
    layer = layer_of(40, 6)
    attention = attention_of(layer)
    dispersion = -(attention * (attention + 1e-10).log()).sum()
    shift = ((attention - attention.mean(1, keepdim=True)) ** 2).sum() / (6 - 1)
    weight = Cake(window=6).observe(layer, Candidates(0, 34, 10)).weight
    assert weight == pytest.approx(float(dispersion * shift), rel=1e-6)
    weight = Cake(window=6, tau1=2.0, tau2=0.5).observe(layer, Candidates(0, 34, 10)).weight
    assert weight == pytest.approx(float(dispersion ** (1 / 2) * shift ** (1 / 0.5)), rel=1e-6)


def test_pooling_follows_the_indicator_and_precedes_the_group() -> None:
    layer = layer_of(40, 6)
    attention = attention_of(layer)
    indicator = attention.mean(1) + 200 * attention.var(1, unbiased=True)
    padded = torch.nn.functional.pad(indicator, (2, 2))
    pooled = sum(padded[:, shift : shift + 34] for shift in range(5)) / 5
    assert isinstance(pooled, torch.Tensor)
    for group in ("mean", "max"):
        expected = pooled.view(2, 2, 34).mean(1) if group == "mean" else pooled.view(2, 2, 34).amax(1)
        score = Cake(window=6, group=group).observe(layer, Candidates(0, 34, 10)).score
        torch.testing.assert_close(score.double(), expected, rtol=1e-5, atol=1e-8)


def test_shares_are_cut_off_and_the_rest_goes_one_by_one_to_the_lowest_layers() -> None:
    assert allocate([1.0, 1.0, 1.0], 11, 100) == [4, 4, 3]
    assert allocate([1.0, 1.0, 2.0], 10, 100) == [3, 2, 5]


def test_what_the_cap_cuts_off_is_spread_equally_and_not_by_preference() -> None:
    # Shares 15, 4, 1: the cap takes 5 off the first; 3 and 2 go to the others, though one has four times the weight.
    assert allocate([15.0, 4.0, 1.0], 20, 10) == [10, 7, 3]


def test_nothing_is_capped_again_and_the_surplus_is_lost() -> None:
    # Shares 20, 8, 2: the cap takes 9 off, 5 and 4 are added, and the second layer stands above the cap.
    assert allocate([10.0, 4.0, 1.0], 30, 11) == [11, 13, 6]
    assert stages([10.0, 4.0, 1.0], 30, 11)[-1] == [11, 11, 6]


def test_a_layer_may_get_nothing() -> None:
    assert allocate([1000.0, 1.0], 10, 100) == [10, 0]


def test_what_rounding_gave_too_much_is_taken_back_equally() -> None:
    # The nearest float32 of 16,777,219 is 16,777,220.
    assert allocate([1.0], 16_777_219, 20_000_000) == [16_777_219]


def test_a_layer_with_a_single_token_gives_none_back() -> None:
    # In float32 the sum is 1 and the total 33,554,436: shares of that and of 1.68, two too many, both from the first.
    assert allocate([1.0, 5e-8], 33_554_435, 40_000_000) == [33_554_434, 1]


def test_shares_are_float32_summed_in_layer_order() -> None:
    # 0.5 + 2^24 and then + 1 both round back to 2^24, so the middle layer's share is not 99.99... but 100.
    assert proportional_shares([0.5, 2.0**24, 1.0], 100)[1] == 100.0
    assert allocate([0.5, 2.0**24, 1.0], 100, 1000) == [0, 100, 0]
    # So do 32 times 1, one after the other; summed in any other order they would count.
    assert proportional_shares([2.0**24] + [1.0] * 32, 100)[0] == 100.0


def test_the_first_layers_share_the_budget_of_all() -> None:
    assert stages([1.0, 1.0], 10, 100) == [[10], [5, 5]]
    assert stages([1.0, 1.0], 10, 8) == [[8], [5, 5]]


def test_a_remainder_may_wander_and_raise_a_layers_budget_by_one() -> None:
    # Shares 5.5, 4.5, then 4.96, 4.05, 0.99: two tokens are over instead of one, and the second layer gets one.
    found = stages([5.5, 4.5, 1.0988], 10, 100)
    assert found == [[10], [6, 4], [5, 5, 0]]
    assert cascade.running_minimum(found)[-1] == [5, 4, 0]


def test_a_saturated_layer_may_raise_the_budgets_of_layers_with_little_preference() -> None:
    # The last layer's share of 15 is cut to 8; 7 and the rest of 1 go to the others, the first of which held 1.
    found = stages([1e-6, 1.0, 1.0, 100.0], 16, 8)
    assert found[2:] == [[1, 8, 7], [4, 2, 2, 8]]
    assert cascade.running_minimum(found)[-1] == [1, 2, 2, 8]


def test_the_cascade_flag_chooses_between_running_minimum_and_last_budgets() -> None:
    weights = [5.5, 4.5, 1.0988]
    shape = BudgetShape(num_layers=3, num_kv_heads=1, candidates=100, protected=0, budget=10)
    # The total is 30. Shares 16.5 and 13.5 become 17 and 13; then 14.87, 12.16 and 2.97 become 15, 13 and 2.
    assert Cake(allocator="reference", cascade=False).layer_budgets(weights, shape) == [15, 13, 2]
    assert Cake(allocator="reference").layer_budgets(weights, shape) == [15, 13, 2]
    # A total of 10 over five layers, the last two of no weight: the second layer rises from 4 to 5 as above.
    weights, shape = [5.5, 4.5, 1.0988, 0.0, 0.0], BudgetShape(5, 1, 100, 0, 2)
    assert Cake(allocator="reference", cascade=False).layer_budgets(weights, shape) == [5, 5, 0, 0, 0]
    assert Cake(allocator="reference").layer_budgets(weights, shape) == [5, 4, 0, 0, 0]


def test_prompts_up_to_budget_and_window_stay_whole() -> None:
    published = Cake(window=8, allocator="reference", strict_budget=False)
    assert compress(published, [layer_of(28, 8)], 20).whole
    assert not compress(published, [layer_of(29, 8)], 20).whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], -1, 5), "total is -1, expected an integer from 0 to 4611686018427387904"),
        (([1.0], 1.0, 5), "total is 1.0"),
        (([1.0], 1, -5), "capacity is -5"),
        (([], 1, 5), "preferences is empty"),
        (([1.0, -1.0], 1, 5), r"preferences\[1\] is -1, expected a finite number of at least 0"),
        (([float("nan")], 1, 5), r"preferences\[0\] is nan"),
        (([1e39], 1, 5), r"preferences\[0\] is 1e\+39"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        allocate(*arguments)
