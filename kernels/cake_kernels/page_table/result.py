"""What ``page_table`` gives."""

from typing import NamedTuple

from torch import Tensor


class PageTable(NamedTuple):
    """Physical pages of a batch in one layer.

    Attributes:
        base_rows: [B, Hkv, max_pages] int64 first K row of each page in the slab seen as [L * 2 * R * Hkv, D]; row t of
            the page lies ``t * Hkv`` rows further, its V row ``R * Hkv`` rows further. -1 past the last page.
        kv_lens: [B, Hkv] int32 physical rows.
    """

    base_rows: Tensor
    kv_lens: Tensor
