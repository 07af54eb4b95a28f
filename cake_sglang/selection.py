"""Which tokens stay: exact top-k with one documented order, and the result that a policy hands on.

The order among equal scores is: lower position first, then lower layer, then lower head. Scores are compared, never
added to, so a selection of k is always a part of the selection of k + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cake_sglang.errors import BudgetError, PolicyError


def keep_mask(score: Tensor, count: int) -> Tensor:
    """Mark the ``count`` largest entries of ``score``.

    Args:
        score: [n], [H, n] or [L, H, n] float, finite. All dimensions compete with each other.
        count: Entries to keep, 0 to ``score.numel()``.

    Returns:
        Bool mask of the same shape with exactly ``count`` true entries.

    Raises:
        BudgetError: ``count`` is out of range.
    """
    if not 0 <= count <= score.numel():
        raise BudgetError(f"count is {count}, expected 0 to {score.numel()}")
    if count == 0:
        return torch.zeros_like(score, dtype=torch.bool)
    threshold = torch.topk(score.flatten(), count, sorted=False).values.min()
    kept = score > threshold
    missing = count - int(kept.sum())
    # Ties at the threshold in order of position, then layer, then head: the token dimension goes first.
    ties = (score == threshold).movedim(-1, 0)
    first = ties.flatten().nonzero()[:missing, 0]
    chosen = torch.zeros(ties.numel(), dtype=torch.bool, device=score.device)
    chosen[first] = True
    return kept | chosen.view(ties.shape).movedim(0, -1)


def largest(score: Tensor, count: int) -> Tensor:
    """Give the positions of the ``count`` largest entries of ``score [n]``, ascending, int64."""
    return keep_mask(score, count).nonzero()[:, 0]


def descending(score: Tensor, count: int) -> Tensor:
    """Give the positions of the ``count`` largest entries of ``score [n]``, largest first, ties by position."""
    return torch.sort(score, descending=True, stable=True).indices[:count]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The columns that a compressed segment keeps.

    Attributes:
        kept: [L][Hkv] int64 columns, ascending; protected ones included.
        layer_budgets: [L] tokens per KV head that the layer was given on average, protected ones excluded.
        protected: Columns at the end of the compressed range that every head keeps.
        whole: Nothing was evicted, because the range was within the budget.
    """

    kept: tuple[tuple[Tensor, ...], ...]
    layer_budgets: tuple[float, ...]
    protected: int
    whole: bool = False

    @property
    def counts(self) -> list[list[int]]:
        """[L][Hkv] columns kept."""
        return [[len(columns) for columns in layer] for layer in self.kept]

    @property
    def mean_kept(self) -> float:
        """Mean number of columns kept per layer and KV head."""
        counts = [count for layer in self.counts for count in layer]
        return sum(counts) / len(counts)


def select(
    scores: Sequence[Tensor], counts: Sequence[Sequence[int]], columns: tuple[int, int], protected: int
) -> Selection:
    """Keep the best candidates of each head and the protected columns after them.

    Args:
        scores: [L] of [Hkv, n] scores of the candidates.
        counts: [L][Hkv] candidates to keep.
        columns: Half-open range of the candidates.
        protected: Columns right after the candidates, all kept.

    Raises:
        PolicyError: A score is not [Hkv, n] for these columns.
        BudgetError: A count is out of range.
    """
    start, stop = columns
    kept = []
    for layer, (score, row) in enumerate(zip(scores, counts, strict=True)):
        if list(score.shape) != [len(row), stop - start]:
            raise PolicyError(f"score of layer {layer} is {list(score.shape)}, expected {[len(row), stop - start]}")
        tail = torch.arange(stop, stop + protected, device=score.device)
        kept.append(
            tuple(torch.cat([largest(head, count) + start, tail]) for head, count in zip(score, row, strict=True))
        )
    means = tuple(sum(row) / len(row) for row in counts)
    return Selection(tuple(kept), means, protected)
