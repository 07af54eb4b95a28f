"""Where the pages of a batch lie for one layer, each KV head on its own."""

from cake_kernels.page_table.op import page_table
from cake_kernels.page_table.result import PageTable

__all__ = ["PageTable", "page_table"]
