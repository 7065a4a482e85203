"""The ids of the claims, in the order of the ledger. Data only: a claim without a module has no verdict."""

from __future__ import annotations

SECTIONS: dict[str, tuple[str, ...]] = {
    "Assumptions and lemmas": ("A1", "A2", "L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "L10", "L11"),
    "The theorem": (
        "T-scale",
        "T-radius",
        "T-const",
        "T-log",
        "T-proof",
        "T-sum",
        "T-coupled",
        "T-maxd",
        "T-linear",
    ),
    "Algorithm 1": (
        "ALG-same",
        "ALG-floor",
        "ALG-lambda",
        "ALG-reduce",
        "ALG-ema",
        "ALG-index",
        "ALG-novel",
    ),
    "Annealing": ("ANN-range", "ANN-gain", "ANN-unbiased", "ANN-past", "ANN-spsa", "ANN-single"),
    "A-GNB": ("GNB-gn", "GNB-limit", "GNB-returned", "GNB-optimum", "GNB-variance", "GNB-scale", "GNB-zo"),
    "Perturbation, clipping, memory": (
        "PERT",
        "CLIP-positive",
        "CLIP-quantile",
        "MEZO-seed",
        "MEM-3x",
        "MEM-12x",
    ),
    "Tables": (
        "TAB-gains",
        "TAB-lead",
        "TAB-1.5",
        "TAB-consistent",
        "TAB-bold",
        "TAB-best-zo",
        "TAB-cross",
        "TAB-zeroshot",
        "TAB-best",
        "TAB-15pct",
        "TAB-noise",
    ),
    "Speed and ablations": (
        "SPEED-20x",
        "SPEED-10x",
        "SPEED-2x",
        "ABL-floor",
        "ABL-order",
        "SOPHIA-trigger",
    ),
}

IDS: tuple[str, ...] = tuple(claim for section in SECTIONS.values() for claim in section)
