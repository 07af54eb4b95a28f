"""``cake-sglang inspect``: the table, the JSON and the picture, on a small model with random weights."""

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cake_eval.commands.inspect import main
from cake_eval.inspection import Inspection, LayerInspection, lines
from cake_eval.inspection_plot import kept_share
from cake_sglang.policies.registry import POLICIES
from cake_testing.tiny_models import save_tiny_model

TEXT = "In 1837 the Patriotes rose against the colony. " * 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.md"
    path.write_text(TEXT)
    return path


def inspect_json(capsys, *arguments):
    assert main([str(argument) for argument in arguments] + ["--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"full"}))
def test_every_policy_keeps_the_stated_budget(name, folder, text, capsys):
    found = inspect_json(capsys, text, "--model", folder, "--policy", name, "--budget", "64")
    assert found["num_tokens"] == len(TEXT)
    kept = [head for layer in found["layers"] for head in layer["kept"]]
    assert len(kept) == 3 * 2
    assert sum(map(len, kept)) == 64 * len(kept)
    assert all(head == sorted(set(head)) and head[0] >= 0 and head[-1] < len(TEXT) for head in kept if head)


def test_full_keeps_everything(folder, text, capsys):
    found = inspect_json(capsys, text, "--model", folder, "--policy", "full")
    assert found["whole"] and found["layers"][2]["kept"] == [list(range(len(TEXT)))] * 2


def test_cakes_preferences_follow_from_eager_attentions(folder, text, capsys):
    """Section 4.1 of the paper as its published code computes it, on transformers' attention weights, tau = (1, 1)."""
    found = inspect_json(capsys, text, "--model", folder, "--budget", "64")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.tensor([[sorted_byte(char) for char in TEXT]])
    with torch.inference_mode():
        attentions = model(input_ids=ids, output_attentions=True).attentions
    for layer, attention in zip(found["layers"], attentions, strict=True):
        window = attention[0, :, -32:, : len(TEXT) - 32].double()
        dispersion = -(window * (window + 1e-10).log()).sum()
        shift = window.var(dim=1, unbiased=True).sum(dim=1).sum()
        assert layer["preference"] == pytest.approx(float(dispersion * shift), rel=1e-3)


def sorted_byte(char: str) -> int:
    """Token id of a character: its place in the byte-level alphabet, where a space is written as U+0120."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return alphabet.index("\u0120" if char == " " else char)


def test_the_picture_is_a_png_of_some_size(folder, text, tmp_path, capsys):
    picture = tmp_path / "kept.png"
    assert main([str(text), "--model", str(folder), "--budget", "64", "--plot", str(picture)]) == 0
    header = picture.read_bytes()[:24]
    assert header.startswith(b"\x89PNG") and int.from_bytes(header[16:20]) > 1000
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith(f"policy cake: {len(TEXT)} tokens, 64.0 kept per layer and KV head")
    assert len(table) == 2 + 3


def test_the_pictures_shares_are_of_tokens_and_heads():
    layer = LayerInspection(0, 1.0, ((0, 1), (1, 3)))
    share = kept_share(Inspection("cake", 2, 4, 0, False, (layer,)))
    assert np.array_equal(share, [[0.5, 1.0, 0.0, 0.5]])


def test_the_table_joins_neighbours_and_counts_what_it_leaves_out():
    kept = tuple(range(0, 40, 2)) + (40, 41)
    table = list(lines(Inspection("x", 22, 50, 0, False, (LayerInspection(0, math.pi, (kept,)),))))
    assert "3.142" in table[2] and table[2].endswith("0, 2, 4, … 15 more ranges …, 36, 38, 40-41")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--policy", "cak"], "unknown policy 'cak'; did you mean 'cake'"),
        (["--budget", "5"], "budget of cake is 5, expected an integer of at least 32"),
        (["--set", "windw=4"], "has no field 'windw'; did you mean 'window'"),
        (["--set", "window"], "--set is 'window', expected FIELD=VALUE"),
        (["--set", "window=1"], "window is 1, expected an integer of at least 2"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (["--plot", "picture.jpg"], "expected a name that ends in .png"),
        (["--plot", "nowhere/picture.png"], "there is no folder nowhere"),
    ],
)
def test_a_wrong_call_says_what_is_allowed(arguments, message, text, capsys):
    assert main([str(text), *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_text_is_refused(tmp_path, capsys):
    path = tmp_path / "x.bin"
    path.write_bytes(b"abc\xff")
    assert main([str(path)]) == 1
    assert "is not UTF-8 text: byte 3 is 0xff" in capsys.readouterr().err
    path.write_text(" \n")
    assert main([str(path)]) == 1
    assert "holds no text" in capsys.readouterr().err
    assert main([str(tmp_path / "missing.txt")]) == 1
    assert "missing.txt" in capsys.readouterr().err


def test_without_a_text_the_installation_is_reported(capsys):
    main(["--json"])
    assert json.loads(capsys.readouterr().out)["versions"]["sglang"] == "0.5.23"
