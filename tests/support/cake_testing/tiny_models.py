"""Model folders of a few kilobytes with random weights, which transformers loads like any other."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 600,
    "initializer_range": 0.4,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "gemma2": Gemma2Config(**SIZES, sliding_window=256, attn_logit_softcapping=5.0, query_pre_attn_scalar=3),
}


def save_tiny_model(folder: Path, kind: str = "llama") -> Path:
    """Write a model with random weights and a tokenizer whose tokens are bytes; the same weights every time."""
    torch.manual_seed(11)
    AutoModelForCausalLM.from_config(CONFIGS[kind]).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder
