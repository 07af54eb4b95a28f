"""Shows a policy the prompts of ``cake_testing.policy_oracle_parts``."""

from collections.abc import Callable

import pytest
import torch

from cake_sglang.observation import LayerObservation, Window
from cake_sglang.policies.base import KVPolicy
from cake_sglang.policies.h2o import H2O
from cake_sglang.policies.kvzip import KVzip
from cake_testing.policy_oracle_parts import Prompt

Observe = Callable[[Prompt, KVPolicy], list[LayerObservation]]


def _windows(prompt: Prompt, policy: KVPolicy, layer: int) -> tuple[Window, ...]:
    """The passes' columns follow the prompt's; their positions go on from the prompt's end, each pass anew."""
    if isinstance(policy, KVzip) or getattr(policy, "window_source", "last") != "last":
        passes = prompt.passes[:1] if getattr(policy, "window_source", "") == "probe" else prompt.passes
        result, column = [], prompt.length
        for ran in passes:
            rows = ran.q.shape[2]
            result.append(
                Window(
                    torch.from_numpy(ran.q[layer]),
                    prompt.length + torch.arange(rows),
                    attended=(*ran.seen, (column, column + rows)),
                    scored=ran.scored if isinstance(policy, KVzip) else None,
                )
            )
            column += rows
        return tuple(result)
    rows = prompt.length - prompt.start if isinstance(policy, H2O) else getattr(policy, "window", 1)
    first = prompt.length - rows
    q = torch.from_numpy(prompt.q[layer])
    if isinstance(policy, H2O):
        # In two pieces, as a chunked prefill gives them.
        middle = (first + prompt.length) // 2
        pieces = ((first, middle), (middle, prompt.length))
        return tuple(Window(q[:, low:high], torch.arange(low, high)) for low, high in pieces)
    return (Window(q[:, first:], torch.arange(first, prompt.length)),)


def _observe(prompt: Prompt, policy: KVPolicy) -> list[LayerObservation]:
    result = []
    for layer in prompt.layers:
        own = [torch.from_numpy(ran.k[layer]) for ran in prompt.passes]
        k = torch.cat([torch.from_numpy(prompt.k[layer]), *own], dim=1)
        v = torch.cat([torch.from_numpy(prompt.v[layer]), *own], dim=1)
        positions = [torch.arange(prompt.length), *(prompt.length + torch.arange(keys.shape[1]) for keys in own)]
        result.append(
            LayerObservation(
                layer,
                k,
                _windows(prompt, policy, layer),
                v=v,
                w_o=torch.from_numpy(prompt.w_o[layer]),
                k_pos=torch.cat(positions),
                compressed=(prompt.start, prompt.length),
            )
        )
    return result


@pytest.fixture(scope="session")
def observe() -> Observe:
    """Give the function that makes one observation per layer, float64, with the queries that the policy reads."""
    return _observe
