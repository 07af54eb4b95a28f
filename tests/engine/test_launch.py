"""The engine's command line, and what is refused before a minute is spent on loading."""

import json
import socket

import pytest

from cake_sglang.errors import StartError
from cake_sglang.runtime import launch


def command(num_gpus: int = 0, extra: tuple[str, ...] = (), **environ: str) -> launch.EngineCommand:
    return launch.build_command(
        model_path="owner/model",
        host="127.0.0.1",
        port=30000,
        num_gpus=num_gpus,
        extra=extra,
        environ=environ,
    )


def test_without_a_gpu_the_cpu_backend_and_float32_are_chosen() -> None:
    words = command().arguments
    assert words[words.index("--attention-backend") + 1] == "torch_native"
    assert words[words.index("--dtype") + 1] == "float32"
    assert words[words.index("--device") + 1] == "cpu"
    assert "--sleep-on-idle" in words


def test_with_a_gpu_flashinfer_is_chosen() -> None:
    words = command(num_gpus=1).arguments
    assert words[words.index("--attention-backend") + 1] == "flashinfer"
    assert "--device" not in words


@pytest.mark.parametrize("extra", [("--dtype", "bfloat16"), ("--dtype=bfloat16",)])
def test_a_flag_of_the_user_replaces_the_default(extra: tuple[str, ...]) -> None:
    words = command(extra=extra).arguments
    assert words[-len(extra) :] == extra
    assert "float32" not in words


def test_the_engine_always_requires_the_plugin() -> None:
    started = command(CAKE_KV_CONFIG='{"required": false}', SGLANG_USE_CPU_ENGINE="1")
    assert json.loads(started.environ["CAKE_KV_CONFIG"])["required"] is True
    assert "--radix-cache-backend cake" in str(started)
    assert "SGLANG_USE_CPU_ENGINE" not in started.environ


def test_a_port_in_use_gives_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} on 127.0.0.1 cannot be used: Address already in use"):
            launch.check_port("127.0.0.1", port)


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_outside_the_range_names_the_range(port: int) -> None:
    with pytest.raises(StartError, match=f"port {port} is outside 1..65535"):
        launch.check_port("127.0.0.1", port)


def test_too_little_memory_gives_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "available_memory_bytes", lambda: 1_000_000_000)
    with pytest.raises(StartError, match=r"1.0 GB of memory are available, the engine needs at least 3.0 GB"):
        launch.check_memory()
