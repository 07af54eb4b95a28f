"""How much of the cache a layer should get: one number per layer from its attention."""

import math

import torch
from torch import Tensor

from cake_sglang.errors import PolicyError
from cake_sglang.fields import check_number


def cake_preference(entropy: float, variance: float, tau1: float = 1.0, tau2: float = 1.0) -> float:
    """Give ``entropy ** (1 / tau1) * variance ** (1 / tau2)``.

    Args:
        entropy: Spatial dispersion: summed entropy of the window's attention rows, nats, >= 0.
        variance: Temporal shift: summed unbiased variance over the rows, >= 0.
        tau1: Temperature of the dispersion, > 0.
        tau2: Temperature of the shift, > 0.

    Returns:
        The preference, >= 0; only its ratio to other layers' matters.

    Raises:
        PolicyError: A number is out of range.

    Source: CAKE (arXiv 2503.12491), section 4.1; antgroup/cakekv c4675ce ``cake/model/modify_llama.py``.
    """
    # Rounding can leave the entropy of a one-hot row a hair below zero.
    entropy = max(check_number("entropy", entropy, -1e-3), 0.0)
    variance = check_number("variance", variance, 0)
    tau1, tau2 = check_number("tau1", tau1, 0, above=True), check_number("tau2", tau2, 0, above=True)
    try:
        return entropy ** (1 / tau1) * variance ** (1 / tau2)
    except OverflowError as error:
        raise PolicyError(
            f"tau1 is {tau1:g} and tau2 is {tau2:g}, expected larger ones: an entropy of {entropy:g} and a variance of "
            f"{variance:g} give a preference above the largest float"
        ) from error


def normalised_entropy(score: Tensor) -> float:
    """Give the entropy of a layer's scores, divided by the largest that it could be.

    Args:
        score: [Hkv, n] float, >= 0.

    Returns:
        Entropy of ``score / sum(score)`` over all heads and tokens, divided by ``ln(Hkv * n)``: 0 to 1.

    Source: LAVa (arXiv 2509.09754), layer uncertainty; MGDDestiny/Lava 71d3cc8 ``LavaKVCluster``.
    """
    flat = score.flatten()
    share = flat / (flat.sum() + 1e-16)
    entropy = -(share * torch.log(share + 1e-16)).sum()
    return float(entropy) / math.log(max(flat.numel(), 2))
