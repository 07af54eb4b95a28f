"""SGLang and what it imports warn on import, each in its own way; ours may not, so only their import is exempt."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sglang.srt.layers.attention.torch_native_backend  # noqa: F401
