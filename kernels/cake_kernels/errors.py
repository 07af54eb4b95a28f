"""Errors of the kernels. Every leaf is also the standard error that it refines, and can be pickled.

KernelError
├── KernelInputError (ValueError)          a tensor's shape, dtype, device or value is out of range
└── UnsupportedDeviceError (RuntimeError)  the asked-for backend cannot run on this device
"""


class KernelError(Exception):
    """Base of all errors of this package."""


class KernelInputError(KernelError, ValueError):
    """A tensor's shape, dtype, device or value is out of range."""


class UnsupportedDeviceError(KernelError, RuntimeError):
    """The asked-for backend cannot run on this device."""
