"""The floor: two forwards of the same model and loss, replayed from one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class CapturedForwards:
    """Forwards at fixed weights in one graph.

    Args:
        closure: The loss of a batch at fixed addresses.
        count: How many forwards the graph holds.
    """

    def __init__(self, closure: Callable[[], Tensor], count: int = 2) -> None:
        self.count = count
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(2):
                closure()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph):
            self.losses = torch.stack([closure().detach().reshape(()) for _ in range(count)])

    def __call__(self) -> Tensor:
        """Replay; returns the last loss."""
        self.graph.replay()
        return self.losses[-1]
