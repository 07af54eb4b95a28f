"""The command line of SGLang for this machine, and the checks that come before it."""

import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cake_sglang.config import ENV_NAME, CakeConfig
from cake_sglang.errors import StartError
from cake_sglang.runtime.plugin import RADIX_CACHE_NAME

MIN_FREE_BYTES = 3_000_000_000
"""SGLang's three processes take about 2.5 GB on the CPU before weights and KV."""
CPU_POOL_TOKENS = 32_768


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """What will be executed."""

    arguments: tuple[str, ...]
    environ: dict[str, str]

    def __str__(self) -> str:
        """Give the shell command line."""
        return shlex.join(self.arguments)


def build_command(
    *,
    model_path: str,
    host: str,
    port: int,
    num_gpus: int,
    extra: Sequence[str],
    environ: Mapping[str, str],
) -> EngineCommand:
    """Build SGLang's command line; a flag given in ``extra`` replaces the default of the same name.

    Args:
        model_path: Folder or Hugging Face id.
        host: Address to bind.
        port: 1..65535.
        num_gpus: 0 chooses the CPU path.
        extra: SGLang flags as typed by the user.
        environ: Environment to start from.
    """
    defaults: dict[str, str | None] = {
        "--model-path": model_path,
        "--host": host,
        "--port": str(port),
        "--radix-cache-backend": RADIX_CACHE_NAME,
        "--skip-server-warmup": None,
        "--enable-cache-report": None,
    }
    if num_gpus == 0:
        defaults |= {
            "--device": "cpu",
            "--attention-backend": "torch_native",
            "--dtype": "float32",
            "--disable-cuda-graph": None,
            "--sampling-backend": "pytorch",
            "--grammar-backend": "none",
            "--max-total-tokens": str(CPU_POOL_TOKENS),
            "--max-running-requests": "8",
            "--chunked-prefill-size": "2048",
            # Without it the waiting scheduler keeps one core busy, which the service needs.
            "--sleep-on-idle": None,
        }
    else:
        defaults["--attention-backend"] = "flashinfer"
    given = {word.split("=", 1)[0] for word in extra if word.startswith("--")}
    arguments = [sys.executable, "-m", "sglang.launch_server"]
    for flag, value in defaults.items():
        if flag not in given:
            arguments += [flag] if value is None else [flag, value]
    merged = dict(environ)
    merged[ENV_NAME] = _required_config(environ)
    if os.path.isdir(model_path):
        merged.setdefault("HF_HUB_OFFLINE", "1")
    if num_gpus == 0:
        merged.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
        merged.pop("SGLANG_USE_CPU_ENGINE", None)
        # SGLang compiles two small functions with a C++ compiler, which a bare machine does not have.
        merged.setdefault("TORCHDYNAMO_DISABLE", "1")
    return EngineCommand((*arguments, *extra), merged)


def _required_config(environ: Mapping[str, str]) -> str:
    config = CakeConfig.from_env(environ)
    return CakeConfig(enabled=config.enabled, required=True).to_json()


def check_port(host: str, port: int) -> None:
    """Refuse a port that is taken, before a minute is spent on loading.

    Raises:
        StartError: If the port is outside 1..65535 or cannot be bound.
    """
    if not 1 <= port <= 65535:
        raise StartError(f"port {port} is outside 1..65535")
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise StartError(f"port {port} on {host} cannot be used: {error.strerror or error}") from error


def available_memory_bytes() -> int:
    """Give the memory that Linux can hand out without swapping; 0 if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def check_memory() -> None:
    """Refuse to start where the engine would be killed for memory.

    Raises:
        StartError: If less than ``MIN_FREE_BYTES`` are available.
    """
    available = available_memory_bytes()
    if 0 < available < MIN_FREE_BYTES:
        raise StartError(
            f"{available / 1e9:.1f} GB of memory are available, the engine needs at least {MIN_FREE_BYTES / 1e9:.1f} GB"
        )
