"""A causal transformer small enough for exact Hessians, in plain torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a :class:`TinyTransformer`.

    Attributes:
        vocab: Number of tokens.
        d_model: Width, a multiple of ``n_head``.
        n_layer: Blocks.
        n_head: Attention heads.
        max_len: Longest sequence.
        tied: Whether the head is the embedding, transposed (one parameter, one gradient).
        mlp_ratio: Hidden width of the feed-forward part, in units of ``d_model``.
    """

    vocab: int = 32
    d_model: int = 16
    n_layer: int = 2
    n_head: int = 2
    max_len: int = 32
    tied: bool = True
    mlp_ratio: int = 4

    def __post_init__(self) -> None:
        for name in ("vocab", "d_model", "n_layer", "n_head", "max_len", "mlp_ratio"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if self.d_model % self.n_head:
            raise ValueError(f"d_model must be a multiple of n_head, got {self.d_model} and {self.n_head}")


class TinyTransformer(nn.Module):
    """Pre-norm decoder: learned positions, causal attention, GELU; smooth everywhere, no dropout, no buffers.

    Attention and normalisation are written out of elementary operations, so that every derivative is right on every
    device. torch's ``layer_norm`` (2.13) is not to be used here: its second derivatives by ``torch.func`` with respect
    to its weights are wrong, and ``hessian`` then returns a matrix that is not even symmetric.

    Args:
        config: Sizes.
        seed: Of the initial weights: N(0, 0.02²), output projections of the blocks divided by sqrt(2 n_layer),
            norms 1, biases 0. The same seed gives the same float32 values whatever the dtype asked for, and torch's
            global generator is not touched.
        dtype: Of the parameters.
    """

    def __init__(self, config: TransformerConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        # The layers' own initialisation is overwritten below. Building on "meta" would skip it, at the price of the
        # seconds in which torch imports its machinery for that device.
        with torch.random.fork_rng(devices=[]):
            self.embed = nn.Embedding(config.vocab, config.d_model)
            self.position = nn.Embedding(config.max_len, config.d_model)
            self.blocks = nn.ModuleList(_Block(config) for _ in range(config.n_layer))
            self.norm = _Norm(config.d_model)
            self.head = nn.Linear(config.d_model, config.vocab, bias=False)
        self._initialise(seed)
        self.to(dtype)
        if config.tied:
            self.head.weight = self.embed.weight

    def _initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("bias"):
                    parameter.zero_()
                elif "norm" in name:
                    parameter.fill_(1.0)
                else:
                    std = 0.02 / math.sqrt(2 * self.config.n_layer) if name.endswith("out.weight") else 0.02
                    parameter.normal_(0.0, std, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, time, vocab) of tokens (batch, time), int64.

        Raises:
            ValueError: If the sequences are longer than ``max_len``.
        """
        time = tokens.shape[-1]
        if time > self.config.max_len:
            raise ValueError(f"sequences of {time} tokens exceed max_len={self.config.max_len}; shorten them")
        x = self.embed(tokens) + self.position(torch.arange(time, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class _Norm(nn.Module):
    """Layer normalisation over the last axis: the same numbers and names of parameters as ``nn.LayerNorm``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred * (centred.square().mean(dim=-1, keepdim=True) + 1e-5).rsqrt() * self.weight + self.bias


class _Block(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm_attention = _Norm(config.d_model)
        self.attention = _Attention(config)
        self.norm_mlp = _Norm(config.d_model)
        self.mlp = _Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


class _Attention(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(-2, -3) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        future = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
        return self.out((weights @ v).transpose(-2, -3).flatten(-2))


class _Mlp(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.mlp_ratio * config.d_model)
        self.out = nn.Linear(config.mlp_ratio * config.d_model, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.up(x)))


def language_model_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross-entropy (nats) of each token given those before it; tokens (batch, time)."""
    logits = model(tokens[..., :-1])
    return F.cross_entropy(logits.flatten(0, -2), tokens[..., 1:].flatten())
