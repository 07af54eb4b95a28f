"""Child process of ``model_files``: one GGUF file into safetensors, tokenizer and configuration.

``python -m cake_sglang.runtime.gguf_conversion SOURCE TARGET``. The weights are dequantised to bfloat16: a 4-bit
GGUF holds less than bfloat16 keeps, and the folder is half the size of float32.
"""

import sys
from pathlib import Path

from cake_sglang.runtime.model_files import ARCHITECTURES


def convert(source: Path, target: Path) -> None:
    """Write a Hugging Face model folder.

    Raises:
        ValueError: If the file's architecture is not one that is known to convert.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(source.parent), source.name
    found = AutoConfig.from_pretrained(folder, gguf_file=name).model_type
    if found not in ARCHITECTURES:
        raise ValueError(f"architecture {found!r}, expected one of {', '.join(ARCHITECTURES)}")
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)
    for path in target.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
