"""How often Sophia's clip acts, by kind of layer and over time, on a tiny transformer."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch
from torch import Tensor

from helene import ZOSophia, noise
from helene.lab.transformer import TinyTransformer, TransformerConfig, language_model_loss
from synthetic.figures.trials import powers

VERSION = 1
EVERY, TUNING_STEPS, TUNING_SEEDS = 100, 150, (1000,)
VARIANTS: dict[float, tuple[list[float], int, tuple[int, ...]]] = {
    0.05: (powers(0.01, 2.0, -1, 4), 800, (0,)),
    0.002: (powers(0.001, 2.0, 0, 4), 1800, (0, 1, 2, 3, 4)),
}
SIZES = {"vocab": 12, "d_model": 16, "n_layer": 1, "n_head": 2, "max_len": 12, "mlp_ratio": 2}
BATCH, TOKENS = 16, 12
KINDS = {
    "Q, K, V matrices": ("qkv.weight",),
    "attention output": ("attention.out.weight",),
    "fully connected": ("up.weight", "mlp.out.weight"),
    "embeddings": ("embed.weight", "position.weight"),
    "norms": ("norm.weight", "norm_attention.weight", "norm_mlp.weight"),
    "biases": ("bias",),
}


def configs() -> list[dict[str, Any]]:
    """One cell per γ and test seed; Sophia's γ, and one at which the clip acts."""
    shared = {
        "tuning_seeds": list(TUNING_SEEDS),
        "tuning_steps": TUNING_STEPS,
        "every": EVERY,
        "batch": BATCH,
        "model": SIZES,
        "noise": noise.NOISE_VERSION,
        "version": VERSION,
    }
    return [
        {"gamma": gamma, "seed": seed, "learning_rates": rates, "steps": steps, **shared}
        for gamma, (rates, steps, seeds) in VARIANTS.items()
        for seed in seeds
    ]


def cost(config: dict[str, Any]) -> float:
    """Expected core-seconds."""
    return 7.0 + 0.011 * config["steps"]


def kind_of(name: str) -> str:
    """The kind of layer that a parameter's name belongs to.

    Raises:
        ValueError: If it belongs to none.
    """
    for kind, endings in KINDS.items():
        if name.endswith(endings):
            return kind
    raise ValueError(f"parameter {name!r} belongs to no kind of layer; add it to KINDS")


_TUNED: dict[str, dict[str, Any]] = {}


def run(config: dict[str, Any]) -> dict[str, Any]:
    """Choose a learning rate on the tuning seeds, then count on the test seed."""
    known = repr({name: value for name, value in config.items() if name != "seed"})
    if known not in _TUNED:
        _TUNED[known] = _tune(config)
    tuned = _TUNED[known]
    trained = train(config["seed"], tuned["lr"], config["steps"], config)
    return {"status": "reached", **tuned, **trained}


def _tune(config: dict[str, Any]) -> dict[str, Any]:
    rates, losses = config["learning_rates"], []
    for lr in rates:
        ends = [train(s, lr, config["tuning_steps"], config)["loss"][-1] for s in config["tuning_seeds"]]
        losses.append(statistics.median(ends))
    best = rates[losses.index(min(losses))]
    return {"lr": best, "edge": best in (rates[0], rates[-1]), "tuning_loss": losses}


def train(seed: int, lr: float, steps: int, config: dict[str, Any]) -> dict[str, Any]:
    """Train with ZO-Sophia, γ apart at its defaults.

    Returns:
        Per window of ``every`` steps: ``loss``, the mean of the steps' losses, and ``rate``, by kind of layer the share
        of coordinates clipped, mean over the window's steps.
    """
    model = TinyTransformer(TransformerConfig(**config["model"]), seed=seed)
    batch = config["batch"]
    optimizer = ZOSophia(
        model.named_parameters(), lr=lr, gamma=config["gamma"], batch_size=batch * (TOKENS - 1), seed=seed
    )
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    totals: dict[str, int] = {}
    for name, size in sizes.items():
        totals[kind_of(name)] = totals.get(kind_of(name), 0) + size
    generator = torch.Generator().manual_seed(seed + 7)
    chain = transitions(config["model"]["vocab"])
    before, losses, window = optimizer.clip_counts(), [], []
    rates: dict[str, list[float]] = {kind: [] for kind in totals}
    for step in range(1, steps + 1):
        loss = partial(language_model_loss, model, sequences(chain, batch, TOKENS, generator))
        window.append(optimizer.step(loss).item())
        if step % config["every"] == 0:
            after = optimizer.clip_counts()
            for kind, total in totals.items():
                clipped = sum(after[name] - before[name] for name in after if kind_of(name) == kind)
                rates[kind].append(float(f"{clipped / (total * config['every']):.4g}"))
            losses.append(float(f"{statistics.fmean(window):.5g}"))
            before, window = after, []
    return {"loss": losses, "rate": rates, "coordinates": totals}


def transitions(vocab: int) -> Tensor:
    """Rows of a Markov chain with an entropy of about a third of log vocab, shape (vocab, vocab)."""
    generator = torch.Generator().manual_seed(11)
    return (3.0 * torch.randn(vocab, vocab, generator=generator)).softmax(-1)


def sequences(chain: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Token sequences of the chain, shape (count, length)."""
    tokens = [torch.randint(len(chain), (count,), generator=generator)]
    for _ in range(length - 1):
        tokens.append(torch.multinomial(chain[tokens[-1]], 1, generator=generator)[:, 0])
    return torch.stack(tokens, -1)
