"""Whether this machine has a CUDA device, without importing torch."""

import ctypes


def cuda_device_count() -> int:
    """Give the number of CUDA devices that the driver reports; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
