"""A running stack as the end-to-end tests see it, and the greedy samples by which two engines are compared."""

from dataclasses import dataclass
from pathlib import Path

import httpx2

from cake_api.supervisor import Stack
from cake_eval.engine_process import EngineServer

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "patriotes-of-37.md"


def greedy_samples(server: EngineServer) -> list[list[int]]:
    """Greedy continuations: cold, over a cached prefix, and over one that spans two radix nodes."""
    text = server.tokenize(EXAMPLE.read_text(encoding="utf-8"))
    prompts = [
        text[:1],
        text[50:150],
        text[300:1100],
        text[300:1100] + text[10:40],
        text[300:900] + text[20:60],
    ]
    return [server.generate(prompt, 32)["output_ids"] for prompt in prompts]


@dataclass(frozen=True)
class Service:
    """The running service."""

    stack: Stack
    http: httpx2.Client
    data_dir: Path

    def engine(self) -> EngineServer:
        port = self.stack.engine.command[self.stack.engine.command.index("--port") + 1]
        return EngineServer(f"http://127.0.0.1:{port}", self.stack.engine)
