"""A model folder from a GGUF file, whole or in parts: joined, checked, dequantised, saved for `from_pretrained`."""

from __future__ import annotations

import gzip
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from helene.inputs.files import write_folder, write_whole
from llm_bench.models.loading import quiet

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "known_text.json")


def join(parts: Sequence[Path], target: Path, sha256: str | None = None) -> Path:
    """Put raw parts together, in the order given, and check the whole.

    Raises:
        ValueError: If the digest differs: a part is missing, torn or out of order.
        OSError: If a part cannot be read or the target cannot be written; nothing half written is left.
    """

    def write(partial: Path) -> None:
        digest = hashlib.sha256()
        with partial.open("wb") as out:
            for part in parts:
                with part.open("rb") as file:
                    while block := file.read(1 << 22):
                        digest.update(block)
                        out.write(block)
        if sha256 is not None and digest.hexdigest() != sha256:
            raise ValueError(f"the parts give sha256 {digest.hexdigest()}, not {sha256}; carry them again")

    for part in parts:
        part.open("rb").close()  # else a part that is missing would be told as a target that cannot be written
    write_whole(target, write)
    return target


def convert(gguf: Path, out: Path, tokenizer: Path | None = None) -> Path:
    """Dequantise into a folder, in bfloat16; returns it.

    Some versions of transformers read a tokenizer from a GGUF file wrongly and silently. So where a folder with a
    saved one is given, that is taken; a file ``NAME.gz`` in it is unpacked.

    Args:
        gguf: The file.
        out: The folder to make.
        tokenizer: A folder with the tokenizer's files, and `known_text.json` that the preflight checks.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config  # else saving and loading treat it as quantised
        model.hf_quantizer, model.is_quantized = None, False
        model = model.to(torch.bfloat16)
        model.config.dtype = "bfloat16"

        def write(partial: Path) -> None:
            model.save_pretrained(partial)
            if tokenizer is None:
                AutoTokenizer.from_pretrained(**source).save_pretrained(partial)
            else:
                copy_tokenizer(tokenizer, partial)

        write_folder(out, write)
    return out


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy a tokenizer's files, unpacking those that end in ``.gz``.

    Raises:
        FileNotFoundError: If there is no tokenizer.json, packed or not.
    """
    found = 0
    for name in TOKENIZER_FILES:
        plain, packed = source / name, source / f"{name}.gz"
        if plain.is_file():
            shutil.copyfile(plain, target / name)
        elif packed.is_file():
            with gzip.open(packed) as file, (target / name).open("wb") as out:
                shutil.copyfileobj(file, out)
        else:
            continue
        found += name == "tokenizer.json"
    if not found:
        raise FileNotFoundError(f"{source} has no tokenizer.json or tokenizer.json.gz")
