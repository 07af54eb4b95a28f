"""Settings of the plugin, read once per process from ``CAKE_KV_CONFIG`` (JSON), which spawned processes inherit."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

from cake_sglang.errors import ConfigError

ENV_NAME = "CAKE_KV_CONFIG"


@dataclass(frozen=True, slots=True)
class CakeConfig:
    """Effective settings of the plugin.

    Attributes:
        enabled: Compress KV caches. Only ``false`` is implemented; ``true`` is refused at start.
        required: End the process when the plugin cannot work. The launcher sets it, so that an engine started
            for this service never runs without the plugin; a plain SGLang in the same environment only logs.
    """

    enabled: bool = False
    required: bool = False

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        for name in ("enabled", "required"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{ENV_NAME}: {name} is {getattr(self, name)!r}, expected true or false")
        if self.enabled:
            raise ConfigError(f"{ENV_NAME}: enabled is true, but only false is implemented in this version")

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "CakeConfig":
        """Read the settings from an environment; an absent or empty variable gives the defaults.

        Raises:
            ConfigError: If the variable is not a JSON object, or names an unknown setting.
        """
        raw = environ.get(ENV_NAME, "").strip()
        if not raw:
            return cls()
        try:
            values = json.loads(raw)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{ENV_NAME} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{ENV_NAME} is a JSON {type(values).__name__}, expected an object")
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1) or known
                raise ConfigError(f"{ENV_NAME}: unknown setting {name!r}; did you mean {', '.join(near)}?")
        return cls(**values)

    def to_json(self) -> str:
        """Give the settings as the JSON that ``from_env`` reads."""
        return json.dumps({field.name: getattr(self, field.name) for field in fields(self)})
