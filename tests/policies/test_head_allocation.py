"""A layer's rows over its heads, worked by hand; whole policies are compared in ``test_policies``."""

import torch

from cake_sglang.policies.base import BudgetShape
from cake_sglang.policies.head_allocation import flattened_counts, global_counts, published_counts, safeguarded_counts
from cake_sglang.policies.snapkv import SnapKV

# The five best are 9, 8, 7, 6 of the first head and 5 of the second.
SCORE = torch.tensor([[9.0, 1.0, 8.0, 7.0, 6.0], [2.0, 5.0, 4.0, 3.0, 0.0]])


def test_the_best_of_all_heads_stay():
    assert flattened_counts(SCORE, 5) == [4, 1]
    assert flattened_counts(SCORE, 0) == [0, 0]
    assert flattened_counts(SCORE, 10) == [5, 5]


def test_equal_scores_go_to_the_lower_column_and_then_to_the_lower_head():
    assert flattened_counts(torch.ones(3, 4), 5) == [2, 2, 1]


def test_what_a_head_is_promised_counts_towards_the_total():
    assert flattened_counts(SCORE, 5, [0, 3]) == [2, 3]
    assert safeguarded_counts(SCORE, 5, 2) == [3, 2]
    assert safeguarded_counts(SCORE, 5, 0) == [4, 1]


def test_the_published_counts_mix_competition_with_an_equal_share_and_round_half_to_even():
    # Counts 4 and 1; a fifth of 2.5 rows is rounded down to none: 3.2 and 0.8.
    assert published_counts(SCORE, 5, 0.2, 2) == [3, 1]
    # Half of 4 and 1 and half of 4: 4 and 2.5.
    assert published_counts(SCORE, 5, 0.5, 4) == [4, 2]
    # Half of 4 and 2, and half of 2: 3 and 2.
    assert published_counts(SCORE, 6, 0.5, 2) == [3, 2]


def test_the_published_counts_stop_at_what_a_head_has():
    # Half of 4 and 1, and half of 8: 6 and 4.5.
    assert published_counts(SCORE, 5, 0.5, 8) == [5, 4]


def test_a_layer_that_keeps_everything_is_left_whole():
    assert published_counts(SCORE, 10, 0.5, 0) == [5, 5]


def test_layers_compete_with_each_other():
    # The six best of both: 9, 8, 7, 6 and 5 of the first layer, 5.5 of the second.
    assert global_counts([SCORE, torch.tensor([[5.5, 0, 0, 0, 0], [0, 0, 0, 0, 0]])], 6) == [[4, 1], [1, 0]]


def test_of_equal_scores_the_lower_column_goes_first_and_then_the_lower_layer():
    assert global_counts([torch.ones(2, 3)] * 2, 6) == [[2, 2], [1, 1]]


def test_without_competition_the_rest_goes_to_the_first_heads():
    shape = BudgetShape(num_layers=1, num_kv_heads=3, candidates=9, protected=0, budget=4)
    assert SnapKV().head_budgets(None, 11, shape) == [4, 4, 3]  # type: ignore[arg-type]


def test_a_layer_has_no_more_candidates_than_the_range_holds():
    shape = BudgetShape(num_layers=4, num_kv_heads=1, candidates=9, protected=3, budget=20)
    assert (shape.per_layer, shape.total) == (9, 36)
