"""What the machine gives and what the kernels take of it: copy bandwidth, and each kernel over all parameters."""

from __future__ import annotations

from typing import Any

import torch

from helene.kernels import codes, launch
from helene.kernels.tiles import Piece, Tiles
from llm_bench.cost.timing import Contestant, time_in_turns
from llm_bench.models.shapes import OPT

SIZE = 1 << 30  # elements


def measure(rounds: int = 7) -> dict[str, dict[str, Any]]:
    """Seconds and bytes a second of each kernel at 2^30 bfloat16 elements, with 7 and 10 rounds, both cosines."""
    device = torch.device("cuda")
    theta = torch.randn(SIZE, device=device, dtype=torch.bfloat16)
    plus, minus = torch.empty_like(theta), torch.empty_like(theta)
    half = SIZE // 2
    m, h = torch.randn(half, device=device).bfloat16(), torch.rand(half, device=device).bfloat16()
    codes_m, codes_h = (torch.full((half,), 5, dtype=d, device=device) for d in (torch.int8, torch.uint8))
    scales_m, scales_h = (torch.ones(half // 256, device=device) for _ in range(2))
    control = torch.tensor(launch.control_words(1, 1, 0), device=device)
    values = torch.tensor([1e-3, 1e-9, 1.0, 0.0], device=device)
    hypers = torch.full((1, codes.NUM_HYPERS), 1e-6, device=device)
    hypers[0, 8] = 0.0
    estimating = hypers.clone()
    estimating[0, 8] = 1.0
    copies = Tiles([Piece(theta, 1)])
    first = theta[:half]
    bf16 = Tiles([Piece(first, 1, 0, 0, (m, m, h, h))])
    bits = Tiles([Piece(first, 1, 0, 0, (codes_m, scales_m, codes_h, scales_h))])
    left, right = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))

    contestants: dict[str, Contestant] = {
        "copy": Contestant(lambda: plus.copy_(theta), 3),
        "matmul 8192": Contestant(lambda: left @ right, 3),
    }
    moved = {"copy": 4 * SIZE}
    for rounds_, fast, warps in ((7, False, 4), (7, True, 4), (7, False, 8), (7, True, 8), (10, False, 4)):
        label = f"rounds {rounds_} {'fast' if fast else 'exact'} warps {warps}"
        more: dict[str, Any] = {"rounds": rounds_, "fast": fast, "num_warps": warps}

        def both(more: dict[str, Any] = more) -> None:
            launch.perturb(copies, plus, minus, control, values, **more)

        def mezo(more: dict[str, Any] = more) -> None:
            launch.update(copies, codes.SGD, control, values, hypers, **more)

        contestants[f"both copies, {label}"] = Contestant(both, 3)
        contestants[f"MeZO update, {label}"] = Contestant(mezo, 3)
        moved[f"both copies, {label}"], moved[f"MeZO update, {label}"] = 6 * SIZE, 4 * SIZE
    for fast in (False, True):
        for name, tiles, rows, a_parameter in (
            ("bf16 state", bf16, hypers, 10),
            ("bf16 state and estimate", bf16, estimating, 12),
            ("8-bit state", bits, hypers, 7),
            ("8-bit state and estimate", bits, estimating, 8),
        ):

            def step(tiles: Tiles = tiles, rows: torch.Tensor = rows, fast: bool = fast) -> None:
                launch.update(tiles, codes.HELENE, control, values, rows, fast=fast)

            label = f"HELENE update, {name}, {'fast' if fast else 'exact'}"
            contestants[label], moved[label] = Contestant(step, 3), a_parameter * half
    results = time_in_turns(contestants, rounds)
    for name, result in results.items():
        if name in moved:
            result["bytes"] = moved[name]
            result["bytes_per_second"] = moved[name] / result["median_seconds"]
    results["matmul 8192"]["operations_per_second"] = 2 * 8192**3 / results["matmul 8192"]["median_seconds"]
    return results


def overlap(rounds: int = 7) -> dict[str, dict[str, Any]]:
    """Seconds of a graph of products as large as OPT-1.3B's at 16 x 64 tokens, of copies, and of both at one time.

    If copies could hide behind products, both would take as long as the longer. The library's products for this
    generation of GPUs hold a whole multiprocessor each, so that nothing runs beside them.
    """
    device, tokens = torch.device("cuda"), 1024
    hidden, wide, *_ = OPT["opt-1.3b"]
    shapes = [(hidden, hidden)] * 4 + [(wide, hidden), (hidden, wide)]
    weights = [torch.randn(shape, device=device).bfloat16() for shape in shapes]
    inputs = {width: torch.randn(tokens, width, device=device).bfloat16() for width in (hidden, wide)}

    def multiply() -> None:
        for _ in range(10):
            for weight in weights:
                torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    multiply()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        multiply()
    theta = torch.randn(1 << 28, device=device, dtype=torch.bfloat16)
    plus, minus = torch.empty_like(theta), torch.empty_like(theta)
    control = torch.tensor(launch.control_words(1, 1, 0), device=device)
    values, tiles = torch.tensor([1e-3, 1e-9, 1.0, 0.0], device=device), Tiles([Piece(theta, 1)])
    first, second = torch.cuda.Stream(priority=-1), torch.cuda.Stream()

    def copies() -> None:
        launch.perturb(tiles, plus, minus, control, values)

    def both() -> None:
        here = torch.cuda.current_stream()
        for stream, work in ((first, graph.replay), (second, copies)):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                work()
        for stream in (first, second):
            here.wait_stream(stream)

    contestants = {"products": graph.replay, "copies": copies, "products and copies at one time": both}
    return time_in_turns({name: Contestant(work, 5) for name, work in contestants.items()}, rounds)


def fast_cosine_error() -> float:
    """Largest |dz| / max(1, |z|) of the hardware's cosine against the exact one, over 2^30 elements.

    The design allows 4e-6.
    """
    device, worst = torch.device("cuda"), 0.0
    for part in range(16):
        exact = launch.fill(11, 1, 0, 5, part << 26, 1 << 26, device)
        fast = launch.fill(11, 1, 0, 5, part << 26, 1 << 26, device, fast=True)
        worst = max(worst, ((fast - exact).abs() / exact.abs().clamp_min(1.0)).max().item())
    return worst
