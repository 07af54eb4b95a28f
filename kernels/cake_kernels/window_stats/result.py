"""What ``window_stats`` gives."""

from dataclasses import dataclass

from torch import Tensor

PER_TOKEN = ("mean", "variance", "maximum", "pooled_maximum")
ALL_STATS = frozenset((*PER_TOKEN, "entropy"))


@dataclass(frozen=True, slots=True)
class WindowStats:
    """Statistics over the window's rows, one value per query head and scored token; None where not asked for.

    All are float32 (float64 when the queries are).

    Attributes:
        mean: [Hq, n] mean over the rows.
        variance: [Hq, n] unbiased variance over the rows (divided by W - 1).
        maximum: [Hq, n] largest value over the rows.
        pooled_maximum: [Hq, n] largest value over the rows after each row was average-pooled along the tokens (zero
            padding, divisor always the kernel) and rescaled to the mass it had.
        entropy: [Hq] sum over rows and scored tokens of ``-a * ln(a + 1e-10)``; nats.
    """

    mean: Tensor | None = None
    variance: Tensor | None = None
    maximum: Tensor | None = None
    pooled_maximum: Tensor | None = None
    entropy: Tensor | None = None
