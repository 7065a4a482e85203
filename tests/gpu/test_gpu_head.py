"""On a GPU: the masked-language head is the same model each time that it is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from llm_families import make, wordpiece

from llm_bench import mlm_head, models

pytestmark = pytest.mark.gpu


def test_a_head_trained_again_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    import transformers as tf

    bert = make("bert", dtype=torch.float32, layers=2)
    tf.BertModel(bert.module.config).save_pretrained(tmp_path / "encoder")
    wordpiece().save_pretrained(tmp_path / "encoder")
    texts = [f"the {a} {b} of {c} text" for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyz"]
    weights = []
    for name in ("one", "two"):
        mlm_head.train_head(
            tmp_path / "encoder", texts, tmp_path / name, steps=30, batch=64, device="cuda", say=lambda _: None
        )
        weights.append(models.load(tmp_path / name, "masked").module.state_dict())
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name
