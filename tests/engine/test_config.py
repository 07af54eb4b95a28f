"""Settings of the plugin: everything unknown or impossible is refused by name."""

import pytest

from cake_sglang.config import CakeConfig
from cake_sglang.errors import ConfigError


def test_an_absent_variable_means_compression_off_and_not_required() -> None:
    assert CakeConfig.from_env({}) == CakeConfig(enabled=False, required=False)


def test_settings_survive_the_way_through_the_environment() -> None:
    config = CakeConfig(required=True)
    assert CakeConfig.from_env({"CAKE_KV_CONFIG": config.to_json()}) == config


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('{"requird": true}', "unknown setting 'requird'; did you mean required"),
        ('{"required": 1}', "required is 1, expected true or false"),
        ('{"enabled": true}', "enabled is true, but only false is implemented"),
        ("[]", "JSON list, expected an object"),
        ("{", "is not JSON"),
    ],
)
def test_wrong_settings_are_refused_with_name_and_allowed_values(raw: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CakeConfig.from_env({"CAKE_KV_CONFIG": raw})
