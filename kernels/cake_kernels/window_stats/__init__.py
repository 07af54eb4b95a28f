"""Attention statistics of an observation window: which tokens its queries read."""

from cake_kernels.window_stats.op import window_stats
from cake_kernels.window_stats.result import WindowStats

__all__ = ["WindowStats", "window_stats"]
