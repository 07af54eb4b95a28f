"""Causal attention of each request's newest rows over pages, each KV head on its own."""

from cake_kernels.paged_extend.op import paged_extend

__all__ = ["paged_extend"]
