"""The observed model is the model: transformers' own eager attention is the oracle of logits, queries and keys."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from cake_eval import reference_model
from cake_eval.reference_model import ReferenceModel, cached, output_projection
from cake_sglang.errors import ModelError, UnsupportedError
from cake_testing.tiny_models import save_tiny_model

TOKENS = [(7 * i + i * i) % 251 for i in range(90)]


@pytest.fixture(params=["llama", "qwen2", "gemma2"])
def folder(request, tmp_path):
    return save_tiny_model(tmp_path / request.param, request.param)


def eager(folder: Path):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(input_ids=torch.tensor([TOKENS]), output_attentions=True, use_cache=True)


def weights(q, k, scale, softcap, first):
    """Softmax of every query row over the keys it may see, in plain steps: [Hq, T, N]."""
    logits = torch.einsum("htd,hnd->htn", q, k.repeat_interleave(q.shape[0] // k.shape[0], dim=0)) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    for row in range(q.shape[1]):
        logits[:, row, first + row + 1 :] = -torch.inf
    return logits.softmax(-1)


@pytest.mark.parametrize("chunk, rows", [(2048, 512), (13, 5)])
def test_logits_queries_and_keys_are_those_of_eager_attention(folder, chunk, rows, monkeypatch):
    monkeypatch.setattr(reference_model, "CHUNK", chunk)
    monkeypatch.setattr(reference_model, "ROWS", rows)
    expected = eager(folder)
    cache = DynamicCache()
    logits, recording = ReferenceModel.load(str(folder)).extend(cache, TOKENS, keep=None)

    torch.testing.assert_close(logits, expected.logits[0, -1], rtol=1e-4, atol=1e-4)
    assert sorted(recording.layers) == [0, 1, 2]
    for index, queries in recording.layers.items():
        k, _ = cached(cache, index)
        found = weights(queries.q, k, queries.scale, queries.softcap, 0)
        torch.testing.assert_close(found, expected.attentions[index][0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("keep", [1, 4, 13, 40, 90, 200])
def test_only_the_last_rows_are_recorded(tmp_path, keep, monkeypatch):
    monkeypatch.setattr(reference_model, "CHUNK", 13)
    model = ReferenceModel.load(str(save_tiny_model(tmp_path)))
    _, everything = model.extend(DynamicCache(), TOKENS, keep=None)
    _, last = model.extend(DynamicCache(), TOKENS, keep=keep)
    for index, queries in last.layers.items():
        assert queries.q.shape[1] == min(keep, len(TOKENS))
        assert torch.equal(queries.q, everything.layers[index].q[:, -keep:])


def test_output_projection_gives_what_each_head_writes(tmp_path):
    model = ReferenceModel.load(str(save_tiny_model(tmp_path)))
    _, recording = model.extend(DynamicCache(), TOKENS, keep=1)
    module: Any = recording.layers[1].module
    projection = output_projection(module, 4)
    heads = torch.randn(4, 8)
    written = sum(heads[head] @ projection[head] for head in range(4))
    torch.testing.assert_close(written, module.o_proj(heads.flatten()), rtol=1e-5, atol=1e-5)


def test_a_text_that_slides_out_of_a_layers_window_is_refused(tmp_path):
    model = ReferenceModel.load(str(save_tiny_model(tmp_path, "gemma2")))
    model.extend(DynamicCache(), [1] * 256)
    with pytest.raises(UnsupportedError, match="sees 256 tokens only, of 257"):
        model.extend(DynamicCache(), [1] * 257)


def test_more_tokens_than_the_context_are_refused(tmp_path):
    model = ReferenceModel.load(str(save_tiny_model(tmp_path)))
    cache = DynamicCache()
    model.extend(cache, [1] * 590)
    with pytest.raises(UnsupportedError, match="11 tokens after 590: the model takes 1 to 10 more"):
        model.extend(cache, [1] * 11)
    with pytest.raises(UnsupportedError, match="0 tokens"):
        model.extend(cache, [])


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be loaded"):
        ReferenceModel.load(str(tmp_path))
