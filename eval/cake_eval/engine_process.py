"""A real SGLang server for measurements, with the plugin or without it."""

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cake_rag.child_process import ChildProcess

START_SECONDS = 420.0

STOCK_STAND_IN = '''"""SGLang imports this name on a CPU and never calls it."""


def rotary_embedding(*a, **k):
    raise RuntimeError
'''


class EngineServer:
    """A started server; requests are plain HTTP to SGLang's own routes."""

    def __init__(self, url: str, child: ChildProcess) -> None:
        """Remember where the server is."""
        self.url = url
        self.child = child

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send JSON and give the JSON that comes back."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=900) as response:
            return json.load(response)

    def tokenize(self, text: str) -> list[int]:
        """Give the token ids of a text, special tokens read as such."""
        return self.post("/v1/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def generate(self, input_ids: Sequence[int], max_new_tokens: int) -> dict[str, Any]:
        """Generate greedily, always the full number of tokens; gives ``output_ids`` and ``meta_info``."""
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True}
        return self.post("/generate", {"input_ids": list(input_ids), "sampling_params": sampling})

    def is_ready(self) -> bool:
        """Say whether the server serves; no generation is run for it."""
        try:
            with urllib.request.urlopen(self.url + "/ready", timeout=5) as response:
                return response.status == 200
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False


def free_port() -> int:
    """Give a loopback port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def running_engine(work: Path, *, plugin: bool, extra: Sequence[str] = ()) -> Iterator[EngineServer]:
    """Start a server on the embedded model and stop it afterwards.

    Args:
        work: Folder for the log and the stand-in.
        plugin: Start through ``cake-sglang engine``; otherwise unmodified SGLang, with the same flags, the plugin
            excluded by ``SGLANG_PLUGINS``, and a file in place of the module that SGLang imports and never calls.
        extra: More SGLang flags.
    """
    port = free_port()
    environ = {k: v for k, v in os.environ.items() if not k.startswith("CAKE_KV_")}
    command = [sys.executable, "-m", "cake_sglang.cli", "engine", "--port", str(port), *extra]
    if not plugin:
        command = stock_command(port, extra)
        package = work / "stand_in" / "vllm"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "_custom_ops.py").write_text(STOCK_STAND_IN)
        environ |= {"SGLANG_PLUGINS": "none", "PYTHONPATH": str(package.parent), "HF_HUB_OFFLINE": "1"}
        environ |= {"TORCHDYNAMO_DISABLE": "1"}
    name = "engine with the plugin" if plugin else "stock engine"
    log = work / f"{'plugin' if plugin else 'stock'}-engine.log"
    child = ChildProcess(name, command, log_path=log, environ=environ)
    child.start()
    server = EngineServer(f"http://127.0.0.1:{port}", child)
    try:
        child.wait_until(server.is_ready, timeout_s=START_SECONDS)
        yield server
    finally:
        child.stop()


def stock_command(port: int, extra: Sequence[str]) -> list[str]:
    """Give the launcher's own command line without its radix cache, which stock SGLang does not know."""
    from cake_sglang.runtime.launch import build_command
    from cake_sglang.runtime.model_files import cache_dir, resolve_model

    model = resolve_model(None, cache_dir(os.environ))
    built = build_command(model_path=model, host="127.0.0.1", port=port, num_gpus=0, extra=extra, environ=os.environ)
    words = list(built.arguments)
    at = words.index("--radix-cache-backend")
    return words[:at] + words[at + 2 :]
