"""Methods written from their papers, in float64 on one flat vector, for tests to compare with.

They see a loss and directions, and share no code with the package but the generator of z (`helene.noise`, tested
apart).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from helene import noise

BATCH, EPS, STEPS, SEED = 6, 1e-3, 12, 5
TOLERANCE = 1e3 * 2.0**-52 / EPS


class Problem:
    """A small network in float64 as a function of one flat vector, its three layers of sizes 15, 5 and 24."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
        self.x, self.y = torch.randn(BATCH, 3, dtype=torch.float64), torch.randint(0, 4, (BATCH,))
        self.named = dict(self.model.named_parameters())
        self.layers = ([n for n in self.named if n.startswith("0")], [n for n in self.named if n.startswith("2")])

    def groups(self):
        return [{"params": [(n, self.named[n]) for n in layer]} for layer in self.layers]

    def spans(self):
        ends = np.cumsum([sum(self.named[n].numel() for n in layer) for layer in self.layers])
        return [slice(0, ends[0]), slice(ends[0], ends[1])]

    def logits(self):
        return self.model(self.x)

    def loss(self):
        return F.cross_entropy(self.logits(), self.y)

    def theta(self):
        return torch.cat([p.detach().reshape(-1) for p in self.named.values()]).numpy().copy()

    def f(self, theta):
        return self._call(theta, self._loss_of).item()

    def gradient(self, theta, of=None):
        leaf = torch.from_numpy(theta.copy()).requires_grad_()
        return torch.autograd.grad(self._call(leaf, of or self._loss_of), leaf)[0].numpy()

    def _loss_of(self, params):
        return F.cross_entropy(torch.func.functional_call(self.model, params, (self.x,)), self.y)

    def _call(self, theta, of):
        theta = torch.as_tensor(theta)
        params, start = {}, 0
        for n, p in self.named.items():
            params[n] = theta[start : start + p.numel()].view(p.shape)
            start += p.numel()
        return of(params)

    def z(self, t, draw=0, law="normal"):
        parts = []
        for n, p in self.named.items():
            if law == "signs":
                words = noise.integers(SEED, t, draw, noise.parameter_id(n), 0, p.numel())
                parts.append(np.where(words >= 1 << 31, -1.0, 1.0))
            else:
                parts.append(noise.normal(SEED, t, draw, noise.parameter_id(n), 0, p.numel()).double().numpy())
        return np.concatenate(parts)


def spsa(problem, theta, t, q=1, two_sided=True, law="normal", blocks=None, first_draw=0):
    """g from 2 q (or q + 1) losses for each block of coordinates; z on the sphere has length √d."""
    g, base = np.zeros_like(theta), problem.f(theta)
    for j in range(q):
        z = problem.z(t, first_draw + j, "signs" if law == "signs" else "normal")
        for block in blocks or [slice(0, theta.size)]:
            v = np.zeros_like(theta)
            v[block] = z[block]
            if law == "sphere":
                v *= math.sqrt(v[block].size) / np.linalg.norm(v)
            plus = problem.f(theta + EPS * v)
            c = (plus - problem.f(theta - EPS * v)) / (2 * EPS) if two_sided else (plus - base) / EPS
            g += c * v / q
    return g


class Reference:
    """Makes the steps of one method; ``hyper`` as given to the class under test."""

    def __init__(self, problem, hyper):
        self.problem, self.h, self.theta, self.t = problem, hyper, problem.theta(), 0
        self.m = self.v = np.zeros_like(self.theta)

    def g(self):
        return spsa(self.problem, self.theta, self.t)

    def step(self):
        self.t += 1
        self.update()
        return self.theta

    def decay(self):
        self.theta = self.theta * (1 - self.h["lr"] * self.h["weight_decay"])


class MeZORef(Reference):
    """Malladi et al. 2023, algorithm 1."""

    def update(self):
        self.theta = self.theta - self.h["lr"] * (self.g() + self.h["weight_decay"] * self.theta)


class MomentumRef(Reference):
    """SGD's heavy ball on the estimate, decay decoupled."""

    def update(self):
        self.m = self.h["momentum"] * self.m + self.g()
        self.decay()
        self.theta = self.theta - self.h["lr"] * self.m


class ConservativeRef(Reference):
    """Best of theta, theta − lr g, theta + lr g (Kim et al. 2021), then decay."""

    def update(self):
        g = self.g()
        candidates = [self.theta, self.theta - self.h["lr"] * g, self.theta + self.h["lr"] * g]
        losses = [self.problem.f(c) for c in candidates]
        self.choices = [*getattr(self, "choices", []), int(np.argmin(losses))]
        self.theta = candidates[self.choices[-1]]
        self.decay()


class SignRef(Reference):
    """signSGD on the estimate."""

    def update(self):
        g = self.g()
        self.decay()
        self.theta = self.theta - self.h["lr"] * np.sign(g)


class ScalarSignRef(Reference):
    """sign(c) z."""

    def update(self):
        z = self.problem.z(self.t)
        c = self.problem.f(self.theta + EPS * z) - self.problem.f(self.theta - EPS * z)
        self.theta = self.theta - self.h["lr"] * (np.sign(c) * z + self.h["weight_decay"] * self.theta)


class AdamRef(Reference):
    """Kingma and Ba 2015, algorithm 1; AdamW of Loshchilov and Hutter 2019 where not coupled."""

    coupled = True

    def update(self):
        g = self.g()
        if self.coupled:
            g = g + self.h["weight_decay"] * self.theta
        else:
            self.decay()
        b1, b2 = self.h["beta1"], self.h["beta2"]
        self.m, self.v = b1 * self.m + (1 - b1) * g, b2 * self.v + (1 - b2) * g**2
        m_hat, v_hat = self.m / (1 - b1**self.t), self.v / (1 - b2**self.t)
        self.theta = self.theta - self.h["lr"] * m_hat / (np.sqrt(v_hat) + self.h["denominator_eps"])


class AdamWRef(AdamRef):
    coupled = False


class LionRef(Reference):
    """Chen et al. 2023, algorithm 2."""

    def update(self):
        g = self.g()
        update = np.sign(self.h["beta1"] * self.m + (1 - self.h["beta1"]) * g)
        self.decay()
        self.theta = self.theta - self.h["lr"] * update
        self.m = self.h["beta2"] * self.m + (1 - self.h["beta2"]) * g


class CurvedRef(Reference):
    """EMA of B g² at t = 1, 1 + k, 1 + 2 k, ..."""

    def curvature(self, g):
        if (self.t - 1) % self.h["interval"] == 0:
            estimate = self.h["batch_size"] * g**2
            self.v = self.h["beta2"] * self.v + (1 - self.h["beta2"]) * estimate


class SophiaRef(CurvedRef):
    """Liu et al. 2023, algorithm 3."""

    clipped = 0

    def update(self):
        g = self.g()
        self.curvature(self.own_gradient(g))
        self.m = self.h["beta1"] * self.m + (1 - self.h["beta1"]) * g
        ratio = self.m / np.maximum(self.h["gamma"] * self.v, self.h["denominator_eps"])
        self.clipped += int((np.abs(ratio) > self.h["clip"]).sum())
        self.decay()
        self.theta = self.theta - self.h["lr"] * np.clip(ratio, -self.h["clip"], self.h["clip"])

    def own_gradient(self, g):
        return g


class NewtonRef(CurvedRef):
    """g / h, no floor."""

    def update(self):
        g = self.g()
        self.curvature(g)
        self.decay()
        self.theta = self.theta - self.h["lr"] * g / (self.v + self.h["denominator_eps"])


class ForwardRef(Reference):
    """Baydin et al. 2022: c is the exact directional derivative (here from the gradient)."""

    def update(self):
        z = self.problem.z(self.t)
        c = self.problem.gradient(self.theta) @ z
        self.theta = self.theta - self.h["lr"] * (c * z + self.h["weight_decay"] * self.theta)


class HiZOORef(Reference):
    """Zhao et al. 2024: Sigma = 1 / inverse; probes and step with Sigma^(1/2) from before the step."""

    inverse = 1.0

    def update(self):
        u = self.problem.z(self.t)
        root = np.sqrt(1.0 / self.inverse) * np.ones_like(u)
        plus, minus = (self.problem.f(self.theta + s * EPS * root * u) for s in (1, -1))
        delta = plus + minus - 2 * self.problem.f(self.theta)
        update = (plus - minus) / (2 * EPS) * root * u
        self.theta = self.theta - self.h["lr"] * (update + self.h["weight_decay"] * self.theta)
        second = np.abs(delta / (2 * EPS**2) * (u / root) ** 2)
        self.inverse = (1 - self.h["smooth"]) * self.inverse + self.h["smooth"] * second


class FZOORef(Reference):
    """Dang et al. 2025: slopes of N Rademacher directions over their own standard deviation."""

    def update(self):
        us = [self.problem.z(self.t, j, "signs") for j in range(self.h["num_directions"])]
        slopes = np.array([(self.problem.f(self.theta + EPS * u) - self.problem.f(self.theta)) / EPS for u in us])
        g = sum(s * u for s, u in zip(slopes, us, strict=True)) / len(us) / slopes.std(ddof=1)
        self.theta = self.theta - self.h["lr"] * (g + self.h["weight_decay"] * self.theta)


class _Exact:
    def g(self):
        return self.problem.gradient(self.theta)


class ExactLionRef(_Exact, LionRef):
    pass


class ExactSophiaRef(_Exact, SophiaRef):
    pass


class SampledSophiaRef(_Exact, SophiaRef):
    """ĝ at labels drawn by inverse transform from the model's softmax; B is the number of labels."""

    def own_gradient(self, g):
        words = noise.integers(SEED, self.t, noise.LABEL_DRAW, 0, 0, BATCH)
        uniform = torch.from_numpy((words + 0.5) / 2.0**32)

        def of(params):
            logits = torch.func.functional_call(self.problem.model, params, (self.problem.x,)).float()
            below = logits.detach().double().softmax(-1).cumsum(-1)
            labels = (below < uniform[:, None] * below[:, -1:]).sum(-1)
            return F.cross_entropy(logits, labels)

        return self.problem.gradient(self.theta, of)
