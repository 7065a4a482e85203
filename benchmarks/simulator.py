"""The batched simulator: seconds of a tuning cell, and against one run at a time over the optimizer."""

from __future__ import annotations

from .common import subject


class Against:
    """Seconds of a run's step in both ways, in turns, on 8 layers of width 32."""

    params = (["helene", "mezo"],)
    param_names = ("method",)
    version = "1"
    unit = "ratio"
    timeout = 300

    def setup(self, method: str) -> None:
        with subject():
            from synthetic.simulation.speed import compare
        self.compare = compare

    def track_time_over_that_of_a_loop(self, method: str) -> float:
        return 1 / self.compare(method, repeats=2).ratio


class Cell:
    """200 steps of a tuning search."""

    rounds = 1
    repeat = (2, 4, 3.0)
    warmup_time = 0.2

    def setup(self) -> None:
        import torch

        torch.set_num_threads(1)
        with subject():
            from synthetic.design import seeds, spaces, trials
            from synthetic.methods import METHODS
            from synthetic.methods.scale import scale_of
            from synthetic.problems import build
            from synthetic.problems.starts import starts
            from synthetic.simulation.simulator import simulate
        problem = build({"kind": "quadratic", "layers": [[8, 32]], "spectrum": {"levels": [1.0, 2.0, 4.0, 8.0]}})
        which = seeds(256)["tuning"]
        x0 = starts(problem, "coordinate", 1.0, which)
        rule = METHODS["helene"]
        settings = [
            rule.settings(trial, scale_of(problem, x0[0], 1e-2), problem) for trial in trials(spaces()["helene"])
        ]
        self.run = lambda: simulate(problem, rule, x0, which, settings, target=1e-9, budget=200, trace=True)

    def time_200_steps_of_a_helene_search(self) -> None:
        self.run()
