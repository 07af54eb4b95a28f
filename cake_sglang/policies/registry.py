"""The one list of policies, and how to make one from a name and fields."""

from dataclasses import fields

from cake_sglang.errors import PolicyError
from cake_sglang.fields import nearest
from cake_sglang.policies.adakv import AdaKV
from cake_sglang.policies.base import KVPolicy
from cake_sglang.policies.cake import Cake
from cake_sglang.policies.cake_defensive import CakeDefensive
from cake_sglang.policies.combined import CombinedPolicy
from cake_sglang.policies.defensive import Defensive
from cake_sglang.policies.full import Full
from cake_sglang.policies.h2o import H2O
from cake_sglang.policies.kvzip import KVzip
from cake_sglang.policies.lava import LAVa
from cake_sglang.policies.layer_defensive import LayerDefensive
from cake_sglang.policies.probe_max import ProbeMax
from cake_sglang.policies.pyramidkv import PyramidKV
from cake_sglang.policies.random_policy import RandomPolicy
from cake_sglang.policies.snapkv import SnapKV
from cake_sglang.policies.streaming_llm import StreamingLLM
from cake_sglang.policies.tova import TOVA

_CLASSES: tuple[type[KVPolicy], ...] = (
    Cake,
    CakeDefensive,
    SnapKV,
    PyramidKV,
    H2O,
    TOVA,
    StreamingLLM,
    AdaKV,
    LAVa,
    Defensive,
    LayerDefensive,
    KVzip,
    ProbeMax,
    RandomPolicy,
    Full,
)
POLICIES: dict[str, type[KVPolicy]] = {policy.name: policy for policy in _CLASSES}


def policy_class(name: str) -> type[KVPolicy]:
    """Give the class of a policy.

    Raises:
        PolicyError: No policy has this name; the near ones are named.
    """
    if name not in POLICIES:
        raise PolicyError(f"unknown policy {name!r}; {nearest(name, POLICIES)}")
    return POLICIES[name]


def make_policy(name: str, /, **values: object) -> KVPolicy:
    """Make a policy from its name and fields.

    Raises:
        PolicyError: No policy has this name, it has no such field, or a value is out of range.
    """
    policy = policy_class(name)
    known = [field.name for field in fields(policy) if field.init]
    for field in values:
        if field not in known:
            raise PolicyError(f"policy {name!r} has no field {field!r}; {nearest(field, known)}")
    return policy(**values)  # type: ignore[arg-type]


def combine(scorer: KVPolicy, budgeter: KVPolicy) -> CombinedPolicy:
    """Take the scores of one policy and the layer budgets of another."""
    return CombinedPolicy(scorer=scorer, budgeter=budgeter)
