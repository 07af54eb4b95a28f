"""Which queries a policy must be shown, so that the engine and the measurements gather the same ones."""

from dataclasses import dataclass

from cake_sglang.errors import PolicyError
from cake_sglang.policies.base import KVPolicy
from cake_sglang.policies.combined import CombinedPolicy
from cake_sglang.policies.kvzip import KVzip
from cake_sglang.policies.window_policy import WindowPolicy

NONE, LAST, PROBE, PROBES, REPEAT, ALL = "none", "last", "probe", "probes", "repeat", "all"


@dataclass(frozen=True, slots=True)
class QuerySource:
    """The queries that a policy reads.

    Attributes:
        kind: ``none``; ``last`` rows of the compressed range; ``probe`` or ``probes`` after it, for scoring only; a
            ``repeat`` pass over it; or ``all`` rows of it.
        rows: How many of the last rows, with the kind ``last``; else 0.
    """

    kind: str
    rows: int = 0

    @property
    def extra_pass(self) -> bool:
        """Whether tokens that do not belong to the document must be run for scoring."""
        return self.kind in (PROBE, PROBES, REPEAT)


def query_source(policy: KVPolicy) -> QuerySource:
    """Give the queries that a policy must be shown.

    Raises:
        PolicyError: A combined policy's two halves read different queries.
    """
    if isinstance(policy, CombinedPolicy):
        ours, theirs = query_source(policy.scorer), query_source(policy.budgeter)
        if NONE in (ours.kind, theirs.kind) or ours == theirs:
            return theirs if ours.kind == NONE else ours
        raise PolicyError(
            f"{policy.scorer.name} reads {ours.kind} rows and {policy.budgeter.name} {theirs.kind} rows; "
            "one compression shows one kind"
        )
    if "repeat" in policy.needs:
        return QuerySource(REPEAT)
    if "all_rows" in policy.needs:
        return QuerySource(ALL)
    if "last_row" in policy.needs:
        return QuerySource(LAST, 1)
    if isinstance(policy, WindowPolicy):
        last = policy.window_source == LAST
        return QuerySource(policy.window_source, policy.window if last else 0)
    return QuerySource(NONE)


def needs_projection(policy: KVPolicy) -> bool:
    """Whether a policy reads the output projection ``w_o``."""
    if isinstance(policy, CombinedPolicy):
        return needs_projection(policy.scorer) or needs_projection(policy.budgeter)
    return "w_o" in policy.needs or (isinstance(policy, KVzip) and policy.value_weight)
