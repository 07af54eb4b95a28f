"""A layer's preference, from numbers that can be worked by hand."""

import math

import pytest
import torch

from cake_sglang.errors import PolicyError
from cake_sglang.policies.base import BudgetShape
from cake_sglang.policies.lava import LAVa
from cake_sglang.preference import cake_preference, normalised_entropy


def test_cakes_preference_is_a_product_of_roots():
    assert cake_preference(16.0, 8.0, tau1=2.0, tau2=3.0) == pytest.approx(4.0 * 2.0)
    assert cake_preference(3.0, 2.0, tau1=0.5, tau2=1.0) == pytest.approx(9.0 * 2.0)


def test_without_dispersion_or_shift_there_is_no_preference():
    assert cake_preference(0.0, 5.0) == 0.0
    assert cake_preference(5.0, 0.0) == 0.0
    # A one-hot row's entropy may be rounded to just below zero.
    assert cake_preference(-1e-9, 5.0, tau1=1.6) == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 1.0), r"entropy is -1, expected a finite number of at least -0.001"),
        ((math.nan, 1.0), r"entropy is nan, expected a finite number"),
        ((1.0, -1e-9), r"variance is -1e-09, expected a finite number of at least 0"),
        ((1.0, math.inf), r"variance is inf, expected a finite number"),
        ((1.0, 1.0, 0.0), r"tau1 is 0, expected a finite number above 0"),
        ((1.0, 1.0, 1.0, -2.0), r"tau2 is -2, expected a finite number above 0"),
        ((1000.0, 1.0, 0.001), r"tau1 is 0.001 and tau2 is 1, expected larger ones"),
    ],
)
def test_numbers_without_a_preference_are_refused(arguments: tuple[float, ...], message: str):
    with pytest.raises(PolicyError, match=message):
        cake_preference(*arguments)


def test_the_normalised_entropy_goes_from_one_for_equal_scores_to_zero_for_a_single_one():
    assert normalised_entropy(torch.full((3, 8), 0.25, dtype=torch.float64)) == pytest.approx(1.0)
    single = torch.zeros(3, 8, dtype=torch.float64)
    single[1, 2] = 7.0
    assert normalised_entropy(single) == pytest.approx(0.0, abs=1e-12)


def test_the_normalised_entropy_runs_over_all_heads_and_ignores_the_scale():
    # Shares 1/2, 1/4, 1/4 and 0 of ln 4: 1.5 ln 2 of 2 ln 2.
    score = torch.tensor([[4.0, 0.0], [2.0, 2.0]], dtype=torch.float64)
    assert normalised_entropy(score) == pytest.approx(0.75)
    assert normalised_entropy(score * 1000) == pytest.approx(0.75)


def test_lavas_published_split_truncates_shares_and_stops_at_what_a_layer_has():
    # Shares of 60: 26.67, 20, 13.33; the first layer has but 25.
    shape = BudgetShape(num_layers=3, num_kv_heads=2, candidates=25, protected=0, budget=20)
    assert LAVa(allocator="reference").layer_budgets([0.8, 0.6, 0.4], shape) == [25, 20, 13]
