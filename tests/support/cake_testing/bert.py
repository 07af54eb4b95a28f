"""all-MiniLM-L6-v2 written out in numpy from its float32 weights: the oracle of the embedder's tests."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

_NUM_LAYERS = 6
_NUM_HEADS = 12
_EPSILON = 1e-12
_SQRT_2 = math.sqrt(2.0)


def load_safetensors(path: Path) -> Mapping[str, np.ndarray]:
    """The float32 tensors of a safetensors file; the format is a JSON header and raw little-endian data."""
    raw = path.read_bytes()
    header_size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + header_size])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = entry["data_offsets"]
            data = np.frombuffer(raw[8 + header_size + start : 8 + header_size + end], dtype="<f4")
            tensors[name] = data.reshape(entry["shape"])
    return tensors


def sentence_vector(weights: Mapping[str, np.ndarray], token_ids: list[int]) -> np.ndarray:
    """Mean of the last hidden states at unit length, [384] float32, of one unpadded sequence.

    Source: BERT (arXiv 1810.04805) with post-layer normalisation and the exact GELU; pooling as in the model
    card of sentence-transformers/all-MiniLM-L6-v2.
    """
    hidden = (
        weights["embeddings.word_embeddings.weight"][token_ids]
        + weights["embeddings.position_embeddings.weight"][: len(token_ids)]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    hidden = _layer_norm(weights, "embeddings.LayerNorm", hidden)
    for layer in range(_NUM_LAYERS):
        hidden = _layer(weights, f"encoder.layer.{layer}", hidden)
    mean = hidden.mean(axis=0)
    return mean / np.linalg.norm(mean)


def _layer(weights: Mapping[str, np.ndarray], name: str, hidden: np.ndarray) -> np.ndarray:
    attended = _linear(weights, f"{name}.attention.output.dense", _attention(weights, name, hidden))
    hidden = _layer_norm(weights, f"{name}.attention.output.LayerNorm", hidden + attended)
    inner = _linear(weights, f"{name}.intermediate.dense", hidden)
    erf = np.vectorize(math.erf, otypes=[np.float32])
    inner = 0.5 * inner * (1.0 + erf(inner / _SQRT_2))
    return _layer_norm(weights, f"{name}.output.LayerNorm", hidden + _linear(weights, f"{name}.output.dense", inner))


def _attention(weights: Mapping[str, np.ndarray], name: str, hidden: np.ndarray) -> np.ndarray:
    num_tokens, width = hidden.shape
    head_dim = width // _NUM_HEADS
    query, key, value = (
        _linear(weights, f"{name}.attention.self.{part}", hidden)
        .reshape(num_tokens, _NUM_HEADS, head_dim)
        .transpose(1, 0, 2)
        for part in ("query", "key", "value")
    )
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(head_dim)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities = scores / scores.sum(axis=-1, keepdims=True)
    return (probabilities @ value).transpose(1, 0, 2).reshape(num_tokens, width)


def _linear(weights: Mapping[str, np.ndarray], name: str, hidden: np.ndarray) -> np.ndarray:
    return hidden @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _layer_norm(weights: Mapping[str, np.ndarray], name: str, hidden: np.ndarray) -> np.ndarray:
    centred = hidden - hidden.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _EPSILON)
    return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]
