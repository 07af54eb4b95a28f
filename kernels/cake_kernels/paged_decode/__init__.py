"""Attention of one query per request over pages, each KV head on its own."""

from cake_kernels.paged_decode.op import paged_decode

__all__ = ["paged_decode"]
