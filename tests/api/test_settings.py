from pathlib import Path

import pytest
from pydantic import ValidationError

from cake_api.app import create_app
from cake_api.settings import Settings


def test_settings_come_from_variables_with_the_prefix(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAKE_API_PORT", "9000")
    monkeypatch.setenv("CAKE_API_DATA_DIR", "/data")
    monkeypatch.setenv("CAKE_API_MAX_QUESTION_CHARS", "10")

    settings = Settings()

    assert (settings.port, settings.data_dir) == (9000, Path("/data"))
    assert settings.rag_config().max_question_chars == 10


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CAKE_API_PORT", "0"),
        ("CAKE_API_PORT", "70000"),
        ("CAKE_API_ENGINE_URL", "localhost:30000"),
        ("CAKE_API_MAX_UPLOAD_BYTES", "0"),
        ("CAKE_API_HEARTBEAT_S", "0"),
        ("CAKE_API_NUM_PASSAGES", "65"),
    ],
)
def test_a_setting_out_of_range_is_refused_at_start(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    monkeypatch.setenv(name, value)

    with pytest.raises(ValidationError):
        Settings()


def test_settings_that_contradict_each_other_are_refused_at_start():
    with pytest.raises(ValueError, match="answer_tokens is 9, expected at most 5"):
        create_app(Settings(answer_tokens=9, max_answer_tokens=5))


@pytest.mark.parametrize("variable", ["CAKE_API_PROT", "CAKE_API_MAX_UPLOAD_BYTE", "CAKE_API_ENGIN_URL"])
def test_a_misspelt_variable_is_refused_with_the_name_that_was_meant(monkeypatch: pytest.MonkeyPatch, variable: str):
    monkeypatch.setenv(variable, "9")

    with pytest.raises(ValueError, match=f"{variable} is unknown, did you mean CAKE_API_"):
        Settings()


def test_the_clients_variable_is_not_taken_for_a_misspelt_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAKE_API_URL", "http://127.0.0.1:8080")

    Settings()
