"""Models that `GroupedMeZO` is compared on, the loss of each of their examples, and directions written out."""

from __future__ import annotations

import warnings

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from helene import noise
from helene.lab.transformer import TinyTransformer, TransformerConfig

EXAMPLES, LENGTH, VOCABULARY = 6, 5, 37
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 12, "max_position_embeddings": 16}


def gemma():
    config = Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=4, sliding_window=4, query_pre_attn_scalar=4)
    return Gemma3ForCausalLM(config)


def opt():
    return OPTForCausalLM(OPTConfig(**SMALL | {"ffn_dim": 12, "word_embed_proj_dim": 8}))


def opt_projected():
    return OPTForCausalLM(OPTConfig(**SMALL | {"ffn_dim": 12, "word_embed_proj_dim": 6, "do_layer_norm_before": False}))


def llama():
    return LlamaForCausalLM(LlamaConfig(**SMALL))


def llama_tied():
    return LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True))


def bert():
    return BertForMaskedLM(BertConfig(**SMALL))


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=8, n_layer=2, n_head=2, n_positions=16))


def lora():
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft's own, of transformers
        return get_peft_model(llama(), config)


class Plain(nn.Module):
    """Torch's own layers; a vector that the model reads itself; weights that two layers share."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8)
        self.norm, self.rms, self.gain = nn.LayerNorm(8), nn.RMSNorm(8), nn.Parameter(torch.randn(8))
        self.again, self.head = nn.Linear(8, 8, bias=False), nn.Linear(8, VOCABULARY)
        self.again.weight, self.head.weight = self.mix.weight, self.embed.weight

    def forward(self, input_ids, attention_mask=None):
        x = self.norm(self.embed(input_ids))
        x = x + self.again(torch.tanh(self.mix(x).flatten(0, 1))).view_as(x) * (1.0 + self.gain.double()).to(x.dtype)
        return self.head(self.rms(x))


class Tiny(nn.Module):
    """The laboratory's transformer: places that all rows share, norms written out."""

    def __init__(self):
        super().__init__()
        self.inner = TinyTransformer(
            TransformerConfig(vocab=VOCABULARY, d_model=8, n_layer=1, n_head=2, max_len=8, mlp_ratio=2, tied=True)
        )

    def forward(self, input_ids, attention_mask=None):
        return self.inner(input_ids)


MODELS = [Plain, Tiny, gemma, opt, opt_projected, llama, llama_tied, bert, gpt2, lora]


def made(make, dtype=torch.float64):
    torch.manual_seed(3)
    model = make().to(dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def batch_of(examples=EXAMPLES):
    generator = torch.Generator().manual_seed(5)
    ids, labels = torch.randint(0, VOCABULARY, (2, examples, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 3:] = 0
    return {"input_ids": ids, "attention_mask": mask}, labels


def tokens_of(step, length=LENGTH, device="cpu"):
    """A batch of its own for each step: rows of tokens, all seen, and labels."""
    generator = torch.Generator().manual_seed(step)
    ids, labels = torch.randint(0, VOCABULARY, (2, EXAMPLES, length), generator=generator).to(device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def losses(model, batch, labels):
    """The loss of each example."""
    out = model(**batch)
    logits = out if isinstance(out, torch.Tensor) else out.logits
    return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(dim=1)


def written_out(optimizer, step, groups, rank, signs=False):
    """z of each group and parameter, a tensor of its shape, from the generator's numbers."""
    draw, directions = noise.signs if signs else noise.normal, []
    for g in range(groups):
        found = []
        for target in optimizer.targets:
            shape = target.tensor.shape
            size = rank * sum(shape) if len(shape) == 2 else shape.numel()
            seed = optimizer.param_groups[0]["seed"]
            numbers = draw(seed, step, 0, target.id, g * size, size).to(target.tensor.dtype)
            if len(shape) == 2:
                u, v = numbers[: rank * shape[0]].view(rank, -1), numbers[rank * shape[0] :].view(rank, -1)
                numbers = sum(torch.outer(a, b) for a, b in zip(u, v, strict=True)) / rank**0.5
            found.append(numbers.view(shape))
        directions.append(found)
    return directions


def reference_gradient(loss, optimizer, directions, eps):
    """(1/G) Σ_g c_g z_g with each group's losses at weights of its own; ``loss(g)`` is group g's."""
    start = [t.tensor.detach().clone() for t in optimizer.targets]
    total = [torch.zeros_like(p) for p in start]
    for g, direction in enumerate(directions):
        sides = []
        for side in (eps, -eps):
            for t, p, z in zip(optimizer.targets, start, direction, strict=True):
                t.tensor.data.copy_(p + side * z)
            with torch.no_grad():
                sides.append(loss(g))
        for t, p in zip(optimizer.targets, start, strict=True):
            t.tensor.data.copy_(p)
        slope = (sides[0] - sides[1]) / (2 * eps)
        total = [s + slope * z / len(directions) for s, z in zip(total, direction, strict=True)]
    return total
