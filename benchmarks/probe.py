"""Probes: a loss at theta + eps z and at theta - eps z, theta restored after each."""

from __future__ import annotations

from .common import subject

LAYERS, WIDTH = 16, 256


class Probes:
    """16 linear layers of 256 x 256 (about a million parameters) read one batch of 4."""

    params = (["module by module", "full copy"],)
    param_names = ("copies",)
    warmup_time = 0.2
    rounds = 1
    repeat = (2, 5, 2.0)

    def setup(self, copies: str) -> None:
        import torch

        torch.set_num_threads(1)
        with subject():
            from helene.evaluation.directions import Direction, Target
            from helene.evaluation.probe import Probe
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        targets = [Target(p, i, name) for i, (name, p) in enumerate(model.named_parameters())]
        probe = Probe(targets, model if copies == "module by module" else None)
        x = torch.ones(4, WIDTH)

        def pair(step: int) -> None:
            for radius in (1e-3, -1e-3):
                probe.loss(lambda: model(x).square().mean(), Direction(0, step), radius)

        self.pair = pair
        self.pair(0)  # the first probe checks what the loss reads

    def time_10_pairs_of_probes(self, copies: str) -> None:
        for step in range(10):
            self.pair(step)
