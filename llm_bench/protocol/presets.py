"""How a table is measured: sizes, budgets, step sizes, seeds and targets, all fixed before the first run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from helene.methods import compared
from llm_bench.models.tuning import TUNINGS
from llm_bench.runs import methods
from llm_bench.runs.config import UNTRAINED
from llm_bench.runs.natural_step import natural_step_size
from llm_bench.runs.products import Products
from llm_bench.tasks import get_task, task_names
from llm_bench.tasks.task import FEW_SHOT_SEEDS, Kind

# MeZO's settings; a method's step sizes are these times its own ratio and the preset's multiples.
BASE_LR = {"full": 1e-6, "lora": 1e-4, "prefix": 1e-2}
EPS = {("masked", "full"): 1e-3, ("masked", "lora"): 1e-3, ("masked", "prefix"): 1e-1}
EPS |= {("causal", "full"): 1e-3, ("causal", "lora"): 1e-2, ("causal", "prefix"): 1e-1}
SECOND_MODEL = "second-model"  # the preset that repeats tasks with another model
TUNING_SEED = 1000  # of the runs that choose a step size; no test run has it


@dataclass(frozen=True)
class Preset:
    """One protocol, the same for all methods.

    Attributes:
        name: As in commands.
        about: One sentence.
        tasks: By model kind.
        methods: That train.
        tunings: Of the methods.
        adapted: Methods that have rows of LoRA and of a prefix, by kind; None: all.
        untrained: Rows without training.
        multiples: Step sizes tried, in units of the method's natural one; the same number for every method.
        extend: Step sizes added at most by kind, one after the other, where the best one is the smallest or the largest
            tried.
        base_lr: Natural step size of MeZO by tuning.
        steps: Of zeroth-order methods, by kind.
        first_order_steps: Of methods with gradients, by kind.
        looks: At dev in a run.
        batch_size: By kind.
        first_order_batch: Batch size of methods with gradients.
        seeds: Of test runs by kind: directions and, for few-shot, the data.
        tuning_split: Data seed of few-shot tuning runs. A published split has the same kind of text as the test runs'
            splits; a drawn one has that of the training file, which for SST-2 is phrases.
        k: Rows a class for masked models; None takes ``num_train`` for them too.
        num_train: Training rows for causal models.
        num_dev: Dev rows for causal models; None is the task's number.
        num_test: Most test rows.
        target: Dev metric that ends the count, by (kind, task); None counts nothing.
        dtype: Of the weights.
        products: Of float32 weights, see `RunConfig`.
        row_length: Of training batches by task, see `RunConfig`; one shape, and so one captured step.
        compiled: Tasks of causal models whose captured steps compile the model's blocks: it pays where steps are long.
        ranks: Processes that share each batch, see `RunConfig`.
    """

    name: str
    about: str
    tasks: Mapping[Kind, tuple[str, ...]]
    methods: tuple[str, ...]
    tunings: tuple[str, ...]
    untrained: tuple[str, ...]
    multiples: tuple[float, ...]
    steps: Mapping[Kind, int]
    looks: int
    seeds: Mapping[Kind, tuple[int, ...]]
    first_order_steps: Mapping[Kind, int] = field(default_factory=dict)
    batch_size: Mapping[Kind, int] = field(default_factory=lambda: {"masked": 64, "causal": 16})
    first_order_batch: int = 8
    base_lr: Mapping[str, float] = field(default_factory=lambda: BASE_LR)
    k: int | None = 16
    num_train: int = 1000
    num_dev: int | None = None
    num_test: int = 1000
    target: Mapping[tuple[Kind, str], float] = field(default_factory=dict)
    dtype: str = "float32"
    products: Products = "float32"
    row_length: Mapping[str, int] = field(default_factory=dict)
    compiled: tuple[str, ...] = ()
    ranks: int = 1
    extend: Mapping[Kind, int] = field(default_factory=dict)
    tuning_split: int = TUNING_SEED
    adapted: Mapping[Kind, tuple[str, ...]] | None = None

    def settings(self, kind: Kind, task: str, method: str, tuning: str) -> dict[str, Any]:
        """What all runs of a cell have in common, as arguments of `RunConfig`."""
        few = kind == "masked" and self.k is not None
        shared = {
            "kind": kind,
            "task": task,
            "method": method,
            "tuning": tuning,
            "num_train": self.num_train,
            "num_dev": self.num_dev,
            "num_test": self.num_test,
            "dtype": self.dtype,
            "products": self.products,
            "k": self.k if few else None,
        }
        if method in self.untrained:
            return shared
        first = methods.is_first_order(method)
        steps = self.first_order_steps.get(kind, self.steps[kind]) if first else self.steps[kind]
        return {
            **shared,
            "steps": steps,
            "eval_every": max(1, steps // self.looks),
            "batch_size": self.first_order_batch if first else self.batch_size[kind],
            "eps": EPS[kind, tuning] if methods.takes_eps(method) else None,
            "target": None if get_task(task, kind).generates else self.target.get((kind, task)),
            "row_length": self.row_length.get(task, 0),
            "ranks": self.ranks,
        }

    def step_sizes(
        self, method: str, tuning: str, denominator: float = 1.0, below: int = 0, above: int = 0
    ) -> tuple[float, ...]:
        """The grid of a method, smallest first.

        Args:
            method: Its name.
            tuning: Its tuning.
            denominator: Of `llm_bench.runs.natural_step.denominator`.
            below: Step sizes added below.
            above: And above.
        """
        natural = natural_step_size(method, self.base_lr[tuning], denominator)
        sizes = self.multiples
        for _ in range(below):
            sizes = (sizes[0] ** 2 / sizes[1], *sizes)
        for _ in range(above):
            sizes = (*sizes, sizes[-1] ** 2 / sizes[-2])
        return tuple(float(f"{natural * multiple:.3g}") for multiple in sizes)


_DECADES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_ROWS = {"sst2": 64, "copa": 32, "rte": 160, "boolq": 256, "squad": 256}  # shorter ones would be more captured steps
_ALL_TASKS: Mapping[Kind, tuple[str, ...]] = {"masked": task_names("masked")[:6], "causal": task_names("causal")[:9]}
_TABLE_3 = tuple(entry.name for entry in compared("table 3") if entry.name not in ("mezo", "helene"))
_PARTS = (  # the cheapest that tell most first, those that estimate h apart last
    *("helene-no-curvature", "helene-scalar-h", "helene-corrected", "helene-no-momentum", "helene-no-anneal"),
    *("helene-floor-3", "helene-floor-2", "helene-floor-0.9", "zo-sgd-mmt", "zo-adam"),
    *("helene-own-batch", "helene-backprop"),
)

PRESETS = {
    "smoke": Preset(
        "smoke",
        "Minutes of a CPU: tiny models pretrained on a generated language.",
        {"masked": ("sst2",), "causal": ("sst2",)},
        ("mezo", "helene"),
        ("full",),
        ("zero-shot", "linear-probe", "bias-only"),
        (0.3, 1.0, 3.0),
        {"masked": 160, "causal": 160},
        8,
        {"masked": (13, 21), "causal": (0, 1)},
        batch_size={"masked": 32, "causal": 16},
        base_lr={"full": 2e-3, "lora": 2e-2, "prefix": 2e-1},
        num_train=256,
        num_dev=100,
        num_test=200,
        target={("masked", "sst2"): 0.9, ("causal", "sst2"): 0.9},
    ),
    "small": Preset(
        "small",
        "One GPU, in pieces of minutes: small models that install without a hub, real data.",
        {"masked": ("sst2",), "causal": ("sst2", "copa")},
        ("mezo", "helene"),
        ("full",),
        UNTRAINED,
        _DECADES,
        {"masked": 2000, "causal": 2000},
        20,
        {"masked": (13, 21, 42), "causal": (0, 1, 2)},
        target={("masked", "sst2"): 0.7, ("causal", "sst2"): 0.82, ("causal", "copa"): 0.72},
        row_length=_ROWS,
        extend={"causal": 3, "masked": 3},
    ),
    "parts": Preset(
        "parts",
        "One GPU: each switch of HELENE and each control of a gain, on fewer steps.",
        {"causal": ("sst2",)},
        ("mezo", "helene", *_PARTS),
        ("full",),
        ("bias-only",),
        (0.3, 1.0, 3.0, 10.0),
        {"causal": 500},
        5,
        {"causal": (0, 1)},
        target={("causal", "sst2"): 0.75},
        row_length=_ROWS,
        extend={"causal": 2, "masked": 2},
    ),
    "brief": Preset(
        "brief",
        "A quarter of small's steps, and longer tasks: where a GPU is lent for minutes.",
        {"masked": ("sst2",), "causal": ("sst2", "copa", "rte", "boolq", "squad")},
        ("mezo", "helene"),
        ("full",),
        UNTRAINED,
        (0.3, 1.0, 3.0, 10.0),
        {"masked": 500, "causal": 500},
        5,
        {"masked": (13, 21), "causal": (0, 1)},
        target={
            ("masked", "sst2"): 0.65,
            ("causal", "sst2"): 0.75,
            ("causal", "copa"): 0.7,
            ("causal", "rte"): 0.58,
            ("causal", "boolq"): 0.66,
        },
        row_length=_ROWS,
        extend={"causal": 2, "masked": 2},
    ),
    "all": Preset(
        "all",
        "One GPU, every task of the paper with small models: matrix products in TF32, rows padded to eighths.",
        {"causal": ("sst2", "wic", "wsc", "copa", "rte", "cb", "boolq", "squad"), "masked": task_names("masked")[:6]},
        ("mezo", "helene", "helene-corrected", "helene-backprop", "zo-sgd-mmt", "zo-adam", "ft-adam"),
        TUNINGS,
        UNTRAINED,
        (0.25, 0.5, 1.0, 2.0),
        {"masked": 2000, "causal": 2000},
        20,
        {"masked": FEW_SHOT_SEEDS, "causal": (0, 1, 2)},
        first_order_steps={"masked": 1000, "causal": 625},
        target={
            ("masked", "sst2"): 0.7,
            ("masked", "sst5"): 0.3,
            ("masked", "trec"): 0.5,
            ("masked", "snli"): 0.45,
            ("masked", "mnli"): 0.45,
            ("masked", "rte"): 0.6,
            ("causal", "sst2"): 0.82,
            ("causal", "copa"): 0.72,
            ("causal", "rte"): 0.58,
            ("causal", "cb"): 0.7,
            ("causal", "boolq"): 0.66,
            ("causal", "wsc"): 0.66,
            ("causal", "wic"): 0.57,
        },
        products="tf32",
        compiled=("boolq", "squad"),
        extend={"causal": 3, "masked": 8},
        tuning_split=FEW_SHOT_SEEDS[0],
        adapted={"causal": ("mezo", "helene"), "masked": ("mezo", "helene", "ft-adam")},  # as Tables 2 and 1 print
    ),
    "groups": Preset(
        "groups",
        "One GPU: a direction for each group of the batch against one for all, at as many forwards; TF32.",
        {"causal": ("sst2", "squad", "cb"), "masked": ("trec",)},
        ("mezo", "mezo-grouped-16", "mezo-grouped-4", "mezo-grouped", "zo-sgd-mmt", "zo-adam"),
        ("full",),
        (),
        (0.5, 1.0, 2.0, 4.0),
        {"masked": 1000, "causal": 1000},
        20,
        {"masked": FEW_SHOT_SEEDS[:3], "causal": (0, 1, 2)},
        target={("causal", "sst2"): 0.82, ("causal", "cb"): 0.7, ("masked", "trec"): 0.5},
        products="tf32",
        extend={"causal": 4, "masked": 4},
        tuning_split=FEW_SHOT_SEEDS[0],
    ),
    "table-3": Preset(
        "table-3",
        "One GPU: every method and tuning of the paper's table of SST-2, on fewer steps; TF32.",
        {"causal": ("sst2",)},
        ("mezo", "helene", *_TABLE_3),
        TUNINGS,
        ("zero-shot", "bias-only", "linear-probe"),
        (0.25, 0.5, 1.0, 2.0),
        {"causal": 500},
        10,
        {"causal": (0, 1, 2)},
        target={("causal", "sst2"): 0.75},
        products="tf32",
        extend={"causal": 3},
    ),
    "paper": Preset(
        "paper",
        "The paper's models, tasks and steps.",
        _ALL_TASKS,
        ("mezo", "helene", "ft-adam", *_TABLE_3),
        TUNINGS,
        UNTRAINED,
        _DECADES,
        {"masked": 100_000, "causal": 20_000},
        10,
        {"masked": FEW_SHOT_SEEDS, "causal": (0, 1, 2)},
        first_order_steps={"masked": 1000, "causal": 625},
        target={("masked", "sst2"): 0.88, ("causal", "sst2"): 0.88},
        tuning_split=FEW_SHOT_SEEDS[0],
    ),
}
PRESETS |= {
    f"groups-{size}": replace(
        PRESETS["groups"],
        name=f"groups-{size}",
        about=f"One GPU: MeZO at the example-forwards of preset groups, in batches of {size}.",
        tasks={"causal": PRESETS["groups"].tasks["causal"]},
        methods=("mezo",),
        batch_size={"causal": size},
        steps={"causal": 16 * 1000 // size},
    )
    for size in (4, 64)
}
PRESETS |= {
    f"groups-2x{rows}": replace(
        PRESETS["groups"],
        name=f"groups-2x{rows}",
        about=f"Two GPUs, {rows} examples each: as preset groups, with as many groups as examples.",
        tasks={"causal": ("sst2",)},
        methods=("mezo", f"mezo-grouped-{2 * rows}"),
        batch_size={"causal": 2 * rows},
        ranks=2,
    )
    for rows in (8, 16)
}
PRESETS["groups-fzoo"] = replace(
    PRESETS["groups"],
    name="groups-fzoo",
    about="One GPU: FZOO at the forwards of preset groups, nine a step.",
    methods=("fzoo",),
    steps={kind: 2 * steps // 9 for kind, steps in PRESETS["groups"].steps.items()},
)

PRESETS[SECOND_MODEL] = replace(
    PRESETS["all"],
    name=SECOND_MODEL,
    about="One GPU: whether the order of methods holds for another causal model; as preset all.",
    tasks={"causal": ("sst2", "rte", "squad")},
    methods=("mezo", "helene", "zo-sgd-mmt", "zo-adam"),
    tunings=("full",),
)


def get_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        ValueError: If there is none.
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
