"""A fake SGLang engine over real loopback HTTP, for failures that a real engine does not show on demand."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

from cake_testing.fake_tokenizer import FakeTokenizer, render_chat

MODEL_PATH = "/models/fake"


@dataclass
class Behaviour:
    """What the fake does; tests change it while it runs.

    Attributes:
        reply: Text of the answer to a prompt, given as text.
        context_tokens: Prompt and answer together.
        ready_status: Status of ``/ready``.
        prefill_gate: Generations wait for it before their first token.
        token_gate: Generations wait for it before every further token.
        die_after_tokens: Close the connection in mid-answer after this many tokens.
        refuse_generate: Status and body with which ``/generate`` refuses.
        finish: Finish reason of a generation.
        streams_deltas: Send only new text, as with ``--incremental-streaming-output``.
        has_system_turn: False for a chat template that refuses system turns.
        model_path: What ``/model_info`` reports.
    """

    reply: Callable[[str], str] = lambda _: "I do not know."
    context_tokens: int = 2048
    ready_status: int = 200
    prefill_gate: Event = field(default_factory=Event)
    token_gate: Event = field(default_factory=Event)
    die_after_tokens: int | None = None
    refuse_generate: tuple[int, str] | None = None
    finish: dict[str, Any] = field(default_factory=lambda: {"type": "stop", "matched": 0})
    streams_deltas: bool = False
    has_system_turn: bool = True
    model_path: str = MODEL_PATH


class FakeEngine:
    """Serves SGLang's routes on a free loopback port; a context manager."""

    def __init__(self, port: int = 0) -> None:
        self.behaviour = Behaviour()
        self.behaviour.prefill_gate.set()
        self.behaviour.token_gate.set()
        self.tokenizer = FakeTokenizer()
        self.generated: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.paths: list[str] = []
        self.tokenized: list[str] = []
        self.abort_seen = Event()
        self.generation_started = Event()
        self._cached: list[list[int]] = []
        self._lock = Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        self._server.daemon_threads = True
        self._server.engine = self  # type: ignore[attr-defined]  # how http.server passes state to handlers
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def __enter__(self) -> "FakeEngine":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.behaviour.prefill_gate.set()
        self.behaviour.token_gate.set()
        self.stop()

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def cached_tokens(self, input_ids: list[int]) -> int:
        """Give how many leading tokens were seen before, as a radix tree would, and remember the prompt."""
        with self._lock:
            longest = max((_common_prefix(input_ids, seen) for seen in self._cached), default=0)
            self._cached.append(input_ids)
        return min(longest, len(input_ids) - 1)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def engine(self) -> FakeEngine:
        return self.server.engine  # type: ignore[attr-defined]  # set by FakeEngine

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.engine.paths.append(self.path)
        behaviour = self.engine.behaviour
        if self.path == "/ready":
            self._json(behaviour.ready_status, {})
        elif self.path == "/model_info":
            self._json(200, {"model_path": behaviour.model_path})
        elif self.path == "/server_info":
            self._json(
                200,
                {
                    "max_req_input_len": behaviour.context_tokens - 5,
                    "incremental_streaming_output": behaviour.streams_deltas,
                },
            )
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        self.engine.paths.append(self.path)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/tokenize":
            self._tokenize(body)
        elif self.path == "/v1/detokenize":
            self._detokenize(body)
        elif self.path == "/abort_request":
            self.engine.aborted.append(body["rid"])
            self.engine.abort_seen.set()
            self._json(200, {})
        elif self.path == "/generate":
            self._generate(body)
        else:
            self._json(404, {"detail": "Not Found"})

    def _tokenize(self, body: dict[str, Any]) -> None:
        encode = self.engine.tokenizer.encode
        if "messages" in body:
            if body["messages"][0]["role"] == "system" and not self.engine.behaviour.has_system_turn:
                self._json(400, {"message": "System role not supported"})
                return
            self._json(200, {"tokens": encode(render_chat(body["messages"]))})
        else:
            self.engine.tokenized += body["prompt"]
            self._json(200, {"tokens": [encode(text) for text in body["prompt"]]})

    def _detokenize(self, body: dict[str, Any]) -> None:
        tokens, skip = body["tokens"], body["skip_special_tokens"]
        decode = self.engine.tokenizer.decode
        is_batch = bool(tokens) and isinstance(tokens[0], list)
        text = [decode(ids, skip) for ids in tokens] if is_batch else decode(tokens, skip)
        self._json(200, {"text": text})

    def _generate(self, body: dict[str, Any]) -> None:
        engine, behaviour = self.engine, self.engine.behaviour
        engine.generated.append(body)
        if behaviour.refuse_generate:
            status, text = behaviour.refuse_generate
            self._json(status, {"error": {"message": text}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        engine.generation_started.set()
        cached = engine.cached_tokens(body["input_ids"])
        behaviour.prefill_gate.wait()
        prompt = engine.tokenizer.decode(body["input_ids"], False)
        pieces = engine.tokenizer.encode(behaviour.reply(prompt))[: body["sampling_params"]["max_new_tokens"]]
        text = ""
        for index, token in enumerate(pieces):
            if index == behaviour.die_after_tokens:
                self.close_connection = True
                return
            if index:
                behaviour.token_gate.wait()
            delta = engine.tokenizer.decode([token], True)
            text += delta
            is_last = index == len(pieces) - 1
            meta = {
                "prompt_tokens": len(body["input_ids"]),
                "cached_tokens": cached,
                "completion_tokens": index + 1,
                "finish_reason": behaviour.finish if is_last else None,
            }
            if not self._event({"text": delta if behaviour.streams_deltas else text, "meta_info": meta}):
                return
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, payload: dict[str, Any]) -> bool:
        return self._chunk(b"data: " + json.dumps(payload).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> bool:
        try:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
        except OSError:
            self.close_connection = True
            return False
        return True

    def _json(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def wait_until(claim: Callable[[], bool], seconds: float = 10.0) -> None:
    """Return when ``claim`` holds; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not true after {seconds} s")
        time.sleep(0.01)


def _common_prefix(a: list[int], b: list[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
