"""The tiny transformer: deterministic, causal, smooth, and open to torch.func in float64."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacrev
from torch.nn import functional as F

from helene.lab.transformer import TinyTransformer, TransformerConfig, language_model_loss

TINY = TransformerConfig(vocab=5, d_model=4, n_layer=1, n_head=2, max_len=6, mlp_ratio=1)


def tokens(batch, time, vocab, seed=0):
    return torch.randint(vocab, (batch, time), generator=torch.Generator().manual_seed(seed))


def test_same_seed_same_weights_in_every_dtype_and_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    one, two, double, other = (
        TinyTransformer(TransformerConfig(), seed=seed, dtype=dtype)
        for seed, dtype in ((1, torch.float32), (1, torch.float32), (1, torch.float64), (2, torch.float32))
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, value in one.named_parameters():
        assert torch.equal(value, two.get_parameter(name))
        assert torch.equal(value.double(), double.get_parameter(name))
        assert double.get_parameter(name).dtype == torch.float64
    assert not torch.equal(one.embed.weight, other.embed.weight)


def test_the_future_does_not_reach_back():
    model = TinyTransformer(TransformerConfig(), dtype=torch.float64)
    x = tokens(2, 12, 32)
    y = x.clone()
    y[:, 7] = (y[:, 7] + 1) % 32
    before, after = model(x), model(y)
    assert torch.equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(dim=-1).all()


def test_attention_is_torchs():
    """Oracle: the fused kernel. float64, sums of 4 products: 1e-14 is above 20 roundings of numbers of size 1."""
    model = TinyTransformer(TransformerConfig(), dtype=torch.float64)
    attention = model.blocks[0].attention
    x = torch.randn(2, 9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in attention.qkv(x).chunk(3, dim=-1))
    expected = attention.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(attention(x), expected, rtol=0, atol=1e-14)


def test_normalisation_is_torchs():
    """Oracle: nn.LayerNorm. float64, numbers of size 1 to 3: 1e-14 is above 20 roundings."""
    ours = TinyTransformer(TransformerConfig(), dtype=torch.float64).norm
    theirs = torch.nn.LayerNorm(16, dtype=torch.float64)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-14)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_head_is_one_parameter(tied):
    config = TransformerConfig(tied=tied)
    model = TinyTransformer(config)
    names = [name for name, _ in model.named_parameters()]
    assert ("head.weight" in names) is not tied
    assert (model.head.weight is model.embed.weight) is tied
    count = sum(p.numel() for p in model.parameters())
    per_block = 12 * 16 * 16 + (3 + 1 + 4 + 1) * 16 + 4 * 16
    assert count == 2 * per_block + 2 * 16 + 32 * 16 * (2 if tied else 3)
    assert model(tokens(1, 4, 32)).shape == (1, 4, 32)


def test_untrained_loss_is_that_of_guessing():
    """Logits N(0, s^2), s = 0.02 sqrt(d_model) = 0.08: the mean of 152 losses is log(vocab) + s^2/2 but for
    5 s/sqrt(152). The tied head gives the token itself a logit larger by about 0.02 d_model = 0.32: one in 50, under
    0.01 of the loss.
    """
    model = TinyTransformer(TransformerConfig(vocab=50))
    loss = language_model_loss(model, tokens(8, 20, 50))
    assert loss.item() == pytest.approx(math.log(50) + 0.0032, abs=5 * 0.08 / math.sqrt(152) + 0.01)


# torch loads the derivative rules of forward mode through its own deprecated script compiler
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("tied", [True, False])
def test_all_ways_to_the_hessian_agree(tied):
    """torch.func, plain autograd, and differences of the gradient.

    Activations of size 0.02 are normalised: entries of the Hessian reach 1e2, third derivatives along a unit vector
    1e5. So 1e-10 is 1e4 roundings, and central differences of step 1e-6 err by 1e5 * 1e-12 / 6 from truncation and by
    1e-16 * 1e1 / 1e-6 from rounding: below 1e-7.
    """
    config = dataclasses.replace(TINY, tied=tied)
    model = TinyTransformer(config, seed=3, dtype=torch.float64)
    x = tokens(2, 5, 5)
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]

    def loss(flat):
        parts = flat.split([s.numel() for s in shapes])
        values = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return F.cross_entropy(functional_call(model, values, (x[:, :-1],)).flatten(0, 1), x[:, 1:].flatten())

    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    h = hessian(loss)(flat)
    torch.testing.assert_close(h, h.T, rtol=0, atol=1e-10)
    torch.testing.assert_close(h, jacrev(jacrev(loss))(flat), rtol=0, atol=1e-10)
    torch.testing.assert_close(h, torch.autograd.functional.hessian(loss, flat, vectorize=True), rtol=0, atol=1e-10)
    direction = torch.randn(len(flat), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    direction /= direction.norm()
    step = 1e-6
    difference = (grad(loss)(flat + step * direction) - grad(loss)(flat - step * direction)) / (2 * step)
    torch.testing.assert_close(h @ direction, difference, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab": 0}, "vocab must be an integer of at least 1, got 0"),
        ({"n_layer": True}, "n_layer must be an integer of at least 1, got True"),
        ({"d_model": 5}, "d_model must be a multiple of n_head, got 5 and 2"),
    ],
)
def test_bad_sizes(changes, said):
    with pytest.raises(ValueError, match=said):
        TransformerConfig(**changes)


def test_too_long():
    with pytest.raises(ValueError, match="sequences of 7 tokens exceed max_len=6"):
        TinyTransformer(TINY)(tokens(1, 7, 5))


def test_state_dict_round_trip():
    one, two = TinyTransformer(TINY, seed=1), TinyTransformer(TINY, seed=2)
    two.load_state_dict(one.state_dict())
    x = tokens(1, 6, 5)
    assert torch.equal(one(x), two(x))
