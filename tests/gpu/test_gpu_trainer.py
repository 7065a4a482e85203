"""HeleneTrainer on a GPU captures its steps: the numbers of plain ones, plain steps where none is captured."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helene import Helene, MeZO

pytestmark = [pytest.mark.gpu, pytest.mark.llm]

STEPS, ROWS, LENGTH = 12, 4, 16


def _rows(lengths: list[int] | None = None) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for i in range(STEPS * ROWS):
        length = lengths[i // ROWS] if lengths else LENGTH
        ids = torch.randint(4, 64, (length,), generator=generator)
        made.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})
    return made


def _model(dtype: torch.dtype, tuning: str = "full") -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.OPTConfig(
        vocab_size=64, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, word_embed_proj_dim=32, dropout=0.1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.OPTForCausalLM(config).to(dtype)
    if tuning == "full":
        return model
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))


def _trainer(model: Any, folder: Path, method: Any, rows: Any = None, parts: int = 1, **how: Any) -> Any:
    pytest.importorskip("transformers")
    from transformers import TrainingArguments

    from helene.integrations.trainer import HeleneTrainer

    class InOrder(HeleneTrainer):
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=ROWS // parts, gradient_accumulation_steps=parts,
        max_steps=STEPS, learning_rate=1e-3, lr_scheduler_type="linear", logging_steps=3, report_to=[],
        disable_tqdm=True, seed=3, save_strategy="steps", save_steps=6, eval_strategy="steps", eval_steps=4,
    )  # fmt: skip
    data = rows or _rows()
    return InOrder(
        model=model, args=arguments, train_dataset=data, eval_dataset=data[:8], optimizer_cls_and_kwargs=method, **how
    )


def _losses(run: Any) -> list[float]:
    return [entry[key] for entry in run.state.log_history for key in ("loss", "eval_loss") if key in entry]


METHODS: list[Any] = [
    (MeZO, {"eps": 1e-2}),
    (Helene, {"eps": 1e-2, "anneal_horizon": 20, "batch_size": 4, "interval": 2}),
    (Helene, {"eps": 1e-2, "anneal_horizon": 20, "batch_size": 4, "interval": 3, "state_dtype": "8bit"}),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m[0].__name__}-{m[1].get('state_dtype', '')}")
@pytest.mark.parametrize(("tuning", "parts"), [("full", 1), ("full", 2), ("lora", 1)])
def test_captured_as_plain(method: Any, tuning: str, parts: int, tmp_path: Path) -> None:
    """Float32: the forwards are the same operations, so their rounding agrees but for cuBLAS's choices."""
    ends = []
    for name, how in (("plain", {"use_engine": False}), ("auto", {})):
        model = _model(torch.float32, tuning)
        run = _trainer(model, tmp_path / name, method, parts=parts, **how)
        run.train()
        ends.append((run, model))
    (plain, reference), (mine, model) = ends
    assert (plain.step_mode, mine.step_mode, mine.step_reason) == ("plain", "engine", "")
    assert mine._stepper.engine.mode == "graph"
    assert _losses(mine) == pytest.approx(_losses(plain), rel=1e-4)
    assert plain.optimizer.optimizer.steps_made == mine.optimizer.optimizer.steps_made == STEPS
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_resumed_as_unbroken(tmp_path: Path) -> None:
    """From the checkpoint of step 6, to the promised bits: the same operations from the same weights and state."""
    whole, resumed = _model(torch.float32), _model(torch.float32)
    _trainer(whole, tmp_path, METHODS[1]).train()
    _trainer(resumed, tmp_path, METHODS[1]).train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_learning_rate_zero_moves_no_bit(tmp_path: Path) -> None:
    model = _model(torch.bfloat16)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    run = _trainer(model, tmp_path, METHODS[0])
    run.args.learning_rate = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of losses in bfloat16
        run.train()
    assert run.step_mode == "engine"
    assert all(torch.equal(kept[name].cuda(), value) for name, value in model.state_dict().items())


class Asking(nn.Module):
    """Its control flow depends on the data, so no forward of it can be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.embed(input_ids)) * (2.0 if input_ids.sum().item() % 2 else 1.0)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


@pytest.mark.filterwarnings("ignore:steps run without a CUDA graph")
def test_what_cannot_be_captured_is_made_plainly(tmp_path: Path) -> None:
    ends = []
    for name, how in (("plain", {"use_engine": False}), ("auto", {})):
        torch.manual_seed(0)
        model = Asking()
        run = _trainer(model, tmp_path / name, METHODS[0], **how)
        run.train()
        ends.append((run, model))
    assert ends[1][0].step_mode == "plain"
    assert "cannot be captured" in ends[1][0].step_reason
    assert _losses(ends[1][0]) == pytest.approx(_losses(ends[0][0]), rel=1e-4)
    for a, b in zip(ends[0][1].parameters(), ends[1][1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_trained_model_is_captured_when_asked_for_and_refused_where_it_cannot_be(tmp_path: Path) -> None:
    from helene import layer_groups

    model = _model(torch.float32).cuda()
    run = _trainer(model, tmp_path, METHODS[0], use_engine=True)
    run.optimizer = MeZO(layer_groups(model), 1e-3, direction_per_layer=True, model=model)
    with pytest.raises(ValueError, match="use_engine is True, but distribution is 'gaussian' and direction_per_layer"):
        run.train()
