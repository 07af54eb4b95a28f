"""Copies the kept rows of one layer into the cells of a compressed segment."""

from cake_kernels.kv_compaction.op import kv_compaction

__all__ = ["kv_compaction"]
