"""What a policy is shown: rows, positions and columns of each query source."""

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from cake_eval import observe
from cake_eval.observe import PROBES, observe_document, scoring_passes
from cake_eval.reference_model import ReferenceModel
from cake_sglang.errors import UnsupportedError
from cake_sglang.policies.query_source import query_source
from cake_sglang.policies.registry import make_policy
from cake_testing.tiny_models import save_tiny_model

TOKENS = [(7 * i + i * i) % 251 for i in range(90)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder):
    return ReferenceModel.load(str(folder))


def eager_attentions(folder, token_ids):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(input_ids=torch.tensor([token_ids]), output_attentions=True).attentions


def mean_of(layer, window, columns):
    stats = layer.statistics(window, columns, frozenset({"mean"}))
    return stats.mean


@pytest.mark.parametrize("name, rows", [("cake", 32), ("snapkv", 32), ("tova", 1), ("h2o", 90)])
def test_a_prompts_own_rows_observe_it(model, folder, name, rows):
    attentions = eager_attentions(folder, TOKENS)
    for layer in observe_document(model, TOKENS, make_policy(name)):
        (window,) = layer.windows
        assert window.q_pos.tolist() == list(range(90 - rows, 90))
        expected = attentions[layer.layer][0, :, -rows:].mean(dim=1)
        torch.testing.assert_close(mean_of(layer, window, (0, 90)), expected, rtol=1e-4, atol=1e-6)


def test_probes_observe_from_behind_the_document_and_leave_no_trace(model, folder):
    policy = make_policy("probe_max")
    cache = DynamicCache()
    layers = list(observe_document(model, TOKENS, policy, cache))
    assert cache.get_seq_length() == 90
    assert [len(layer.windows) for layer in layers] == [3, 3, 3]
    for index, wording in enumerate(PROBES):
        ids = model.tokens(f"\n\n{wording}\n")
        attentions = eager_attentions(folder, [*TOKENS, *ids])
        for layer in layers:
            window = layer.windows[index]
            assert window.q_pos.tolist() == list(range(90, 90 + len(ids)))
            expected = attentions[layer.layer][0, :, 90:, :90].mean(dim=1)
            torch.testing.assert_close(mean_of(layer, window, (0, 90)), expected, rtol=1e-4, atol=1e-6)


def test_a_repeat_pass_scores_every_chunk_by_its_repetition(model, folder, monkeypatch):
    monkeypatch.setattr(observe, "REPEAT_CHUNK", 40)
    passes = scoring_passes(model, TOKENS, "repeat")
    assert [scoring.scored for scoring in passes] == [(0, 40), (40, 80), (80, 90)]
    for scoring in passes:
        low, high = scoring.scored or (0, 0)
        assert scoring.token_ids[scoring.first_row :] == TOKENS[low:high]
    attentions = {scoring.scored: eager_attentions(folder, [*TOKENS, *scoring.token_ids]) for scoring in passes}
    for layer in observe_document(model, TOKENS, make_policy("kvzip")):
        make_policy("kvzip").require(layer)
        for scoring, window in zip(passes, layer.windows, strict=True):
            assert window.scored == scoring.scored
            start, length = scoring.first_row, len(scoring.token_ids)
            assert window.q_pos.tolist() == list(range(90 + start, 90 + length))
            # The softmax runs over the chunk and the repetition: nothing else takes part.
            low, high = window.scored or (0, 0)
            assert window.attended is not None
            chunk, own = window.attended
            assert chunk == (low, high) and own[1] - own[0] == length
            row = attentions[scoring.scored][layer.layer][0, 0, -1]
            expected = row[low:high] / (row[low:high].sum() + row[90:].sum())
            last = layer.statistics(window.rows(high - low - 1, high - low), (0, 90), frozenset({"maximum"}))
            assert last.maximum is not None
            torch.testing.assert_close(last.maximum[0], expected, rtol=1e-4, atol=1e-6)


def test_a_repeat_pass_shrinks_with_the_room_that_is_left_and_is_refused_without_any(model):
    text = [5] * 400
    sizes = [
        scoring.scored[1] - scoring.scored[0] for scoring in scoring_passes(model, text, "repeat") if scoring.scored
    ]
    assert sum(sizes) == 400 and max(sizes) < 200
    assert all(400 + len(scoring.token_ids) <= 600 for scoring in scoring_passes(model, text, "repeat"))
    with pytest.raises(UnsupportedError, match="room for chunks of .* in the model's context of 600"):
        scoring_passes(model, [5] * 520, "repeat")


@pytest.mark.parametrize("name", ["random", "streaming_llm", "full"])
def test_policies_without_queries_are_shown_none(model, name):
    assert query_source(make_policy(name)).kind == "none"
    assert all(layer.windows == () for layer in observe_document(model, TOKENS, make_policy(name)))
