"""transformers, peft, Lightning and safetensors: the plain loop's trajectory, bit for bit."""

from __future__ import annotations

import copy
import importlib.util
import os

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import helene
from helene.integrations.checkpoints import load_checkpoint, save_checkpoint
from tests.optimizers.contract.contract_table import METHODS, logistic, tied, transformer

OPTIONS = {"Helene": {"anneal_horizon": 20, "batch_size": 4, "interval": 2}}
BATCH, PARTS, STEPS = 2, 2, 6


@pytest.fixture(scope="module")
def language_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=16, n_positions=12, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
        loss_type="ForCausalLM", use_cache=False, attn_pdrop=0.3, resid_pdrop=0.3, embd_pdrop=0.3,
    )  # fmt: skip

    def make():
        torch.manual_seed(0)
        return transformers.GPT2LMHeadModel(config)

    return make


def examples(count=16):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 16, (count, 8), generator=generator)
    return [{"input_ids": row, "labels": row.clone()} for row in rows]


def collate(rows):
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def trainer(model, folder, optimizer=None, **options):
    from transformers import TrainingArguments

    from helene.integrations.trainer import HeleneTrainer

    class InOrder(HeleneTrainer):
        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=BATCH, gradient_accumulation_steps=PARTS, max_steps=STEPS,
        learning_rate=0.02, lr_scheduler_type="linear", logging_steps=1, save_steps=3, report_to=[], use_cpu=True,
        disable_tqdm=True, seed=3, weight_decay=0.1, **options,
    )  # fmt: skip
    return InOrder(model=model, args=arguments, train_dataset=examples(), optimizer_cls_and_kwargs=optimizer)


def plain_loop(model, optimizer, steps=STEPS):
    """What the Trainer does, written out: batches in order, the mean over label tokens, a linear schedule."""
    rows, losses = examples(), []
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / STEPS)
    per_step = BATCH * PARTS
    for step in range(steps):
        start = step * per_step % len(rows)
        parts = [collate(rows[i : i + BATCH]) for i in range(start, start + per_step, BATCH)]
        num_items = sum((part["labels"] != -100).sum() for part in parts)

        def closure(parts=parts, num_items=num_items):
            return torch.stack([model(**part, num_items_in_batch=num_items).loss for part in parts]).sum()

        losses.append(optimizer.step(closure).item())
        scheduler.step()
    return losses


@pytest.mark.llm
@pytest.mark.parametrize("name", ["MeZO", "Helene", "AdamW"])
def test_trainer_follows_the_plain_loop(name, language_model, tmp_path):
    """Accumulation over two micro-batches, decay, a schedule, logging; zeroth-order steps run without dropout."""
    cls, options = getattr(helene, name), OPTIONS.get(name, {})
    model, plain = language_model(), language_model()
    (model.train if name != "AdamW" else model.eval)()
    if name == "AdamW":
        for m in (model, plain):
            for module in m.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
    run = trainer(model, tmp_path, (cls, options))
    run.train()
    more = {} if name == "AdamW" else {"model": plain}
    plain.eval()
    optimizer = cls(helene.layer_groups(plain), 0.02, weight_decay=0.1, seed=3, **more, **options)
    losses = plain_loop(plain, optimizer)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    logged = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    assert logged == pytest.approx(losses, abs=1e-6)
    rates = [entry["learning_rate"] for entry in run.state.log_history if "loss" in entry]
    assert rates == pytest.approx([0.02 * (1 - t / STEPS) for t in range(STEPS)])


@pytest.mark.llm
def test_trainer_resumes(language_model, tmp_path):
    """From its checkpoint of step 3 the run ends where the unbroken one does, bit for bit."""
    method = (helene.Helene, OPTIONS["Helene"])
    whole, resumed = language_model(), language_model()
    trainer(whole, tmp_path, method).train()
    trainer(resumed, tmp_path, method).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert all(map(torch.equal, whole.parameters(), resumed.parameters()))


@pytest.mark.llm
def test_an_interrupted_run_leaves_nothing_to_the_next(language_model, tmp_path):
    """Stopped between two micro-batches, trained again: as the plain loop from where the weights were."""
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_substep_end(self, args, state, control, **more):
            raise KeyboardInterrupt

    model, plain = language_model(), language_model()
    run, stop = trainer(model, tmp_path), Stop()
    run.optimizer = helene.MeZO(model.named_parameters(), 0.02, seed=3)
    run.add_callback(stop)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    run.remove_callback(stop)
    run.train()
    plain.eval()
    plain_loop(plain, helene.MeZO(plain.named_parameters(), 0.02, seed=3))
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


@pytest.mark.llm
def test_trainer_takes_a_built_optimizer_and_refuses_others(language_model, tmp_path):
    model, plain = language_model(), language_model()
    run = trainer(model, tmp_path)
    run.optimizer = helene.MeZO(model.named_parameters(), 0.02, seed=3)
    run.train()
    plain.eval()
    plain_loop(plain, helene.MeZO(plain.named_parameters(), 0.02, seed=3))
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    with pytest.raises(ValueError, match=r"SGD is not an optimizer of helene; use transformers\.Trainer"):
        trainer(model, tmp_path, (torch.optim.SGD, {})).create_optimizer()
    run.optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match=r"SGD is not an optimizer of helene; use transformers\.Trainer"):
        run.train()
    with pytest.raises(ValueError, match=r"optimizer_cls_and_kwargs is MeZO; give \(MeZO, \{\.\.\.\}\)"):
        trainer(model, tmp_path, helene.MeZO).create_optimizer()
    with pytest.raises(ValueError, match="groups=4 needs the loss of each example"):
        trainer(model, tmp_path, (helene.GroupedMeZO, {"groups": 4})).create_optimizer()


@pytest.mark.llm
def test_trainer_refuses_an_lr_that_its_scheduler_would_replace(language_model, tmp_path):
    model = language_model()
    for given in (None, helene.MeZO(model.named_parameters(), lr=lambda step: 0.1 / step)):
        run = trainer(model, tmp_path, (helene.MeZO, {"lr": lambda step: 0.1 / step}))
        run.optimizer = given
        with pytest.raises(
            ValueError, match="the Trainer's scheduler would set lr over it at each step; give a number"
        ):
            run.train()


@pytest.mark.llm
def test_trainer_takes_one_of_several_gpus(language_model, tmp_path, monkeypatch):
    """With two visible it says that it uses the first, and makes the steps of one."""
    from transformers.utils import logging

    said = []
    monkeypatch.setattr(logging.get_logger("helene.integrations.trainer"), "warning", lambda *words: said.append(words))
    one, two = language_model(), language_model()
    single = trainer(one, tmp_path)
    single.train()
    arguments = trainer(two, tmp_path).args
    arguments._n_gpu = 2
    type(single)(model=two, args=arguments, train_dataset=examples()).train()
    assert all(map(torch.equal, one.parameters(), two.parameters()))
    (words,) = said
    assert (words[0] % words[1:]).startswith("2 GPUs are visible, HeleneTrainer uses the first; ")


@pytest.mark.llm
@pytest.mark.filterwarnings("ignore:.* is deprecated:FutureWarning")  # what peft asks of transformers
@pytest.mark.parametrize("tuning", ["lora", "prefix"])
@pytest.mark.parametrize("name", ["MeZO", "Helene", "ForwardGrad", "AdamW"])
def test_peft(name, tuning, language_model):
    """Only the adapter moves, the loss falls, and with ``model`` the trajectory is that without it, bit for bit."""
    peft = pytest.importorskip("peft")
    config = {
        "lora": lambda: peft.LoraConfig(
            r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.0
        ),
        "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    }[tuning]
    batch, ends = collate(examples(4)), []
    for with_model in (True, False):
        torch.manual_seed(5)
        model = peft.get_peft_model(language_model(), config()).eval()
        frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
        first = model(**batch).loss.item()
        options = {**OPTIONS.get(name, {}), **({"model": model} if with_model and name != "AdamW" else {})}
        optimizer = getattr(helene, name)(helene.layer_groups(model), 0.05, **options)
        for _ in range(25):
            optimizer.step(lambda model=model: model(**batch).loss)
        assert model(**batch).loss.item() < first
        assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)
        ends.append([p.detach().clone() for p in model.parameters() if p.requires_grad])
    assert all(map(torch.equal, *ends))


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
@pytest.mark.parametrize("name", ["MeZO", "Helene"])
@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.filterwarnings("default")
def test_lightning_follows_the_plain_loop(name, engine):
    lightning = importlib.import_module("lightning")
    from helene.integrations.lightning import ZerothOrderModule

    options = OPTIONS.get(name, {})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 2))
    plain = copy.deepcopy(model).eval()
    data = torch.utils.data.TensorDataset(torch.randn(12, 3), torch.randint(0, 2, (12,)))

    def loss(m, batch):
        return F.cross_entropy(m(batch[0]), batch[1])

    module = ZerothOrderModule(
        model, loss, lambda m: getattr(helene, name)(m.named_parameters(), 0.05, model=m, **options),
        use_engine=engine or "auto", engine_options={"capture": "repeat"} if engine else None,
    )  # fmt: skip
    run = lightning.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False, accelerator="cpu")  # fmt: skip
    run.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    told = ("engine", "") if engine else ("plain", "no CUDA device holds the parameters")
    assert (module.step_mode, module.step_reason) == told
    optimizer = getattr(helene, name)(plain.named_parameters(), 0.05, model=plain, **options)
    for _ in range(2):
        for batch in torch.utils.data.DataLoader(data, batch_size=4):
            optimizer.step(lambda batch=batch: loss(plain, batch))
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_checkpoints_go_on_bit_for_bit(method, tmp_path):
    """Weights once for tied parameters, state in 8 bits; another optimizer takes the stored hyper-parameters."""
    target, fresh = tied(torch.bfloat16), tied(torch.bfloat16)

    def build(t, lr):
        return method.build(t.model.named_parameters(), lr, eps=t.eps, rounding="stochastic", state_dtype="8bit")

    optimizer, other = build(target, 0.01), build(fresh, 9.0)
    for _ in range(3):
        optimizer.step(target.loss)
    save_checkpoint(tmp_path / "step3.safetensors", target.model, optimizer)
    load_checkpoint(tmp_path / "step3.safetensors", fresh.model, other)
    for _ in range(3):
        optimizer.step(target.loss)
        other.step(fresh.loss)
    assert all(map(torch.equal, target.bits(), fresh.bits()))
    assert [path.name for path in tmp_path.iterdir()] == ["step3.safetensors"]


def test_checkpoints_of_a_learning_rate_that_is_a_tensor(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = helene.MeZO(model.named_parameters(), lr=torch.tensor(0.5))
    save_checkpoint(tmp_path / "c.safetensors", model, optimizer)
    load_checkpoint(tmp_path / "c.safetensors", model, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_checkpoints_of_buffers_that_share_memory(tmp_path):
    """Two names of one table, a part of a parameter: each is written whole, which safetensors alone refuses."""

    def made(values):
        model = nn.Linear(3, 2)
        table = torch.tensor(values)
        for name, buffer in (("whole", table), ("again", table[:]), ("part", table[1:])):
            model.register_buffer(name, buffer)
        model.register_buffer("row", model.weight.data[1])
        return model, helene.MeZO(model.named_parameters())

    saved, other = made([1.0, 2.0, 3.0]), made([0.0, 0.0, 0.0])
    save_checkpoint(tmp_path / "c.safetensors", *saved)
    load_checkpoint(tmp_path / "c.safetensors", *other)
    both = zip(saved[0].state_dict().values(), other[0].state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in both)
    assert other[0].again.data_ptr() == other[0].whole.data_ptr()


def test_checkpoints_of_a_buffer_that_is_expanded(tmp_path):
    """Its elements share memory, where torch's copy_ fails: after the optimizer had been given its state."""

    def made(value):
        model = nn.Linear(2, 2)
        model.register_buffer("scale", torch.full((2, 1, 3), value)[:, :, :1].expand(2, 4, 1))
        return model, helene.MeZO(model.named_parameters())

    saved, other = made(1.0), made(2.0)
    save_checkpoint(tmp_path / "c.safetensors", *saved)
    load_checkpoint(tmp_path / "c.safetensors", *other)
    assert torch.equal(other[0].scale, saved[0].scale)
    assert torch.equal(other[0].weight, saved[0].weight)


def test_checkpoints_of_others(tmp_path):
    target, other = logistic(torch.float32), transformer(torch.float32)
    save_checkpoint(tmp_path / "a", target.model, helene.MeZO(target.model.named_parameters()))
    before = other.bits()
    with pytest.raises(ValueError, match="checkpoint belongs to 1 other parameters"):
        load_checkpoint(tmp_path / "a", other.model, helene.MeZO(other.model.named_parameters()))
    with pytest.raises(ValueError, match="do not both have 0"):
        load_checkpoint(tmp_path / "a", nn.Linear(4, 1), helene.MeZO(target.model.named_parameters()))
    assert all(map(torch.equal, before, other.bits()))
    save_file({"x": torch.ones(1)}, tmp_path / "b")
    with pytest.raises(ValueError, match="it may be plain weights"):
        load_checkpoint(tmp_path / "b", target.model, helene.MeZO(target.model.named_parameters()))


def _reshaped(tensors):
    tensors["model/running_mean"] = torch.zeros(2)


def _one_element(tensors):
    tensors["model/weight"] = torch.full((1,), 7.0)


def _nan(tensors):
    tensors["model/bias"][1] = torch.nan


def _wide(tensors):
    tensors["model/weight"] = tensors["model/weight"].double()


def _short_state(tensors):
    tensors["state/0/momentum"] = torch.zeros(2)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_reshaped, r"running_mean is torch.float32 of shape \(2,\), the model's torch.float32 of \(3,\)"),
        (_one_element, r"weight is torch.float32 of shape \(1,\)"),
        (_nan, "bias has weights that are not finite"),
        (_wide, "weight is torch.float64"),
        (_short_state, r"momentum of shape \(2,\)"),
        (lambda tensors: tensors.pop("model/bias"), "do not both have bias"),
    ],
)
def test_a_checkpoint_that_does_not_fit_changes_nothing(damage, said, tmp_path):
    """Every tensor is looked at before the first one is written."""

    def build():
        model = nn.BatchNorm1d(3).eval()
        return model, helene.ZOMomentum(model.named_parameters(), 0.1)

    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    model, optimizer = build()
    optimizer.step(lambda: model(x).square().mean())
    save_checkpoint(tmp_path / "good", model, optimizer)
    with safe_open(tmp_path / "good", framework="pt") as file:
        metadata, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}
    damage(tensors)
    save_file(tensors, tmp_path / "bad", metadata)
    fresh, other = build()
    before = copy.deepcopy((fresh.state_dict(), other.state_dict()))
    with pytest.raises(ValueError, match=said):
        load_checkpoint(tmp_path / "bad", fresh, other)
    after = fresh.state_dict(), other.state_dict()
    assert all(torch.equal(before[0][name], after[0][name]) for name in after[0])
    assert before[1] == after[1]
    load_checkpoint(tmp_path / "good", fresh, other)


def test_checkpoints_that_cannot_be_written(tmp_path, monkeypatch):
    model = nn.Linear(2, 2)
    optimizer = helene.MeZO(model.named_parameters(), 0.1)
    save_checkpoint(tmp_path / "good", model, optimizer)
    before = (tmp_path / "good").read_bytes()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe is no regular file, and would be replaced by one"):
        save_checkpoint(tmp_path / "pipe", model, optimizer)
    with pytest.raises(OSError, match=r"cannot write .*missing/file: .*choose a folder that is there"):
        save_checkpoint(tmp_path / "missing" / "file", model, optimizer)

    def full(tensors, partial, metadata):
        partial.write_bytes(b"half of it")
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("helene.integrations.checkpoints.save_file", full)
    with pytest.raises(OSError, match=r"cannot write .*good: No space left on device .*free some space"):
        save_checkpoint(tmp_path / "good", model, optimizer)
    assert (tmp_path / "good").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["good", "pipe"]


def test_checkpoints_that_cannot_be_read(tmp_path):
    model = nn.Linear(20, 20)
    optimizer = helene.ZOAdam(model.named_parameters(), 0.1)
    save_checkpoint(tmp_path / "good", model, optimizer)
    whole = (tmp_path / "good").read_bytes()
    for content in (b"", b"garbage" * 99, whole[:30], whole[:-1]):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(ValueError, match=r"bad is no checkpoint: .*; it may have been cut short"):
            load_checkpoint(tmp_path / "bad", model, optimizer)
    with pytest.raises(ValueError, match="is no checkpoint"):
        load_checkpoint(tmp_path, model, optimizer)
    with pytest.raises(FileNotFoundError, match="missing"):
        load_checkpoint(tmp_path / "missing", model, optimizer)
