"""Kernels of CAKE-SGLang; unrelated to SGLang's own ``sglang.kernels.cake_kernels``."""
