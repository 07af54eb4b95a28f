"""Errors of the engine side. Every leaf is also the standard error that it refines, and can be pickled.

CakeError
├── ConfigError (ValueError)           a setting is unknown or out of range
├── PolicyError (ValueError)           a policy's name, parameter or input is unknown or out of range
│   └── BudgetError                    a token budget is out of range or cannot be split
├── UnsupportedError (RuntimeError)    this SGLang, model or option cannot work with the plugin
├── ModelError (RuntimeError)          a model cannot be prepared or is damaged
└── StartError (RuntimeError)          the machine cannot start the engine: port, disk, memory
"""


class CakeError(Exception):
    """Base of all errors of this package."""


class ConfigError(CakeError, ValueError):
    """A setting is unknown or out of range."""


class PolicyError(CakeError, ValueError):
    """A policy's name, parameter or input is unknown or out of range."""


class BudgetError(PolicyError):
    """A token budget is out of range or cannot be split."""


class UnsupportedError(CakeError, RuntimeError):
    """This SGLang, model or option cannot work with the plugin."""


class ModelError(CakeError, RuntimeError):
    """A model cannot be prepared or is damaged."""


class StartError(CakeError, RuntimeError):
    """The machine cannot start the engine: port, disk or memory."""
