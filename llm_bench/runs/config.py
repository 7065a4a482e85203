"""What decides a run, all of it: a frozen dataclass, read from TOML and overridden word by word."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from helene.inputs import numeric
from helene.inputs.files import read_text
from llm_bench.data.stream import shares
from llm_bench.models.loading import DTYPES
from llm_bench.models.tuning import Tuning, TuningName
from llm_bench.runs import methods
from llm_bench.runs.products import PRODUCTS, Products
from llm_bench.tasks import get_task
from llm_bench.tasks.task import Kind

_COUNTS = (  # name, least, advice
    *((name, 1, "the default is a usual size") for name in ("k", "num_train", "num_dev", "num_test")),
    *((name, 0, "any will do") for name in ("seed", "data_seed")),
    ("row_length", 0, "0 leaves it to each batch"),
    ("ranks", 1, "1 is a run of one process"),
    *((name, 0, "it is 0 for rows without training") for name in ("steps", "eval_every", "batch_size")),
)
UNTRAINED = ("zero-shot", "icl", "linear-probe", "bias-only")


@dataclass(frozen=True)
class RunConfig:
    """One run. Paths are not part of it: see `llm_bench.runs.environment`.

    Attributes:
        model: Name of the model, found by the environment.
        kind: ``causal`` or ``masked``.
        task: As in `llm_bench.tasks`.
        method: Of `llm_bench.runs.methods`, or ``zero-shot``, ``icl``, ``linear-probe``, ``bias-only``.
        tuning: ``full``, ``lora`` or ``prefix``, with ``rank``, ``alpha``, ``length``.
        lr: Learning rate.
        eps: Radius of the probes; None for first-order methods.
        hyper: More hyper-parameters of the method.
        steps: Budget.
        batch_size: Examples of a minibatch (all training rows, where there are fewer).
        eval_every: Steps between looks at dev; the last step is looked at as well.
        seed: Of the directions and of added parameters.
        data_seed: Of the split and of the order of batches.
        k: Training rows a class (few-shot); None takes ``num_train`` rows in all.
        num_train: Training rows in all, where ``k`` is None.
        num_dev: Dev rows in all; None is the task's number. Few-shot splits have k a class.
        num_test: Most test rows.
        role: ``test`` looks at the test set, once, at the end; ``tune`` never does; ``measure`` makes no step and
            measures slopes (`llm_bench.runs.natural_step`).
        target: Dev metric in [0, 1] at which the count of steps, forwards and seconds ends; None counts nothing.
        dtype: Of the weights.
        products: How products of float32 weights are computed: ``float32``, ``tf32`` (on CUDA) or ``bfloat16``
            (autocast).
        device: Kind of device: results of two kinds differ by rounding.
        engine: Whether steps are captured (`helene.engine`); ``compiled`` also compiles the model's repeated blocks.
        row_length: Rows of training batches have at least this many tokens; 0 leaves it to each batch.
        best: How the best dev checkpoint is had back: ``replay`` of the trajectory or a ``copy`` of what is trained.
        ranks: Processes that share each batch equally, a card each; see `llm_bench.runs.ranks`.
        fingerprint: Of the model, filled in by the environment.
        rows: Fingerprint of the split, likewise.
    """

    model: str
    kind: Kind
    task: str
    method: str
    tuning: TuningName = "full"
    rank: int = 8
    alpha: float = 16.0
    length: int = 5
    lr: float | None = None
    eps: float | None = None
    hyper: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0
    batch_size: int = 16
    eval_every: int = 0
    seed: int = 0
    data_seed: int = 0
    k: int | None = None
    num_train: int = 1000
    num_dev: int | None = None
    num_test: int = 1000
    role: Literal["test", "tune", "measure"] = "test"
    target: float | None = None
    dtype: str = "float32"
    products: Products = "float32"
    device: str = "cpu"
    engine: bool | Literal["compiled"] = False
    row_length: int = 0
    best: Literal["replay", "copy"] = "replay"
    ranks: int = 1
    fingerprint: str = ""
    rows: str = ""

    def __post_init__(self) -> None:
        task = get_task(self.task, self.kind)
        if self.target is not None and task.generates:
            raise ValueError(
                f"{self.task} is watched by its dev loss, its metric is not known on the way; set no target"
            )
        if self.target is not None and not (isinstance(self.target, int | float) and 0 <= self.target <= 1):
            raise ValueError(f"target is a dev metric in [0, 1], got {self.target!r}; 0.85 is 85 %")
        for name, least, advice in _COUNTS:
            if (count := getattr(self, name)) is not None:
                numeric.whole(count, name, least, 1 << 63, advice)
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        for name, allowed in (
            ("role", ("test", "tune", "measure")),
            ("best", ("replay", "copy")),
            ("device", ("cpu", "cuda")),
            ("products", PRODUCTS),
            ("engine", (False, True, "compiled")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be {' or '.join(map(str, allowed))}, got {getattr(self, name)!r}")
        if self.products != "float32" and self.dtype != "float32":
            raise ValueError(
                f"products {self.products!r} are of float32 weights, dtype is {self.dtype!r}; leave one out"
            )
        if self.products == "tf32" and self.device == "cpu":
            raise ValueError("products 'tf32' need device 'cuda'; on a CPU take 'float32' or 'bfloat16'")
        for name in ("lr", "eps", "seed"):
            if name in self.hyper:
                value = self.hyper[name]
                raise ValueError(f"hyper.{name} is {value!r}, but {name} is a setting of its own; set {name}={value}")
        self.tuned_by()
        if self.ranks > 1:
            self._check_shared(task.loss)
        if self.method in UNTRAINED:
            return
        if self.steps < 1 or self.eval_every < 1 or self.batch_size < 1:
            raise ValueError(
                f"steps, eval_every and batch_size must be at least 1, got {self.steps}, {self.eval_every}, "
                f"{self.batch_size}"
            )
        numeric.finite_positive(self.lr, "lr", "MeZO's full tuning takes 1e-6 to 1e-7")
        probes = methods.takes_eps(self.method)
        if (self.eps is None) == probes or (self.eps is not None and not self.eps > 0):
            need = "needs eps > 0; 1e-3 is usual" if probes else "takes no eps"
            raise ValueError(f"{self.method} {need}, got {self.eps!r}")

    def _check_shared(self, loss: str) -> None:
        way_out = "; set ranks=1"
        if self.method in UNTRAINED or self.role == "measure" or not methods.takes_ranks(self.method):
            raise ValueError(
                f"{self.method} ({self.role}) cannot be shared by {self.ranks} ranks: only training steps of pairs of "
                f"losses or of groups can{way_out}"
            )
        if loss != "classification":
            raise ValueError(
                f"the loss of {self.task} is a mean over tokens, of which ranks have unequal numbers{way_out}"
            )
        shares(range(self.batch_size), self.ranks)

    def tuned_by(self) -> Tuning:
        """The tuning, with its sizes."""
        return Tuning(self.tuning, self.rank, self.alpha, self.length)

    def hyper_parameters(self) -> dict[str, Any]:
        """All that the optimizer is told."""
        given = {"lr": self.lr, "eps": self.eps, **self.hyper}
        return {name: value for name, value in given.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the config of a record; those of one process have no ``ranks``."""
        values = dataclasses.asdict(self)
        if self.ranks == 1:
            del values["ranks"]
        return values


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The config of a record, or of a TOML file's table.

    Raises:
        ValueError: If a name is unknown or missing, or a value is of the wrong type or out of range.
    """
    known = {f.name: f for f in dataclasses.fields(RunConfig)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"a run has no setting {unknown[0]!r}; it has {', '.join(known)}")
    missing = [name for name in ("model", "kind", "task", "method") if name not in values]
    if missing:
        raise ValueError(f"a run needs {', '.join(missing)}")
    hints = typing.get_type_hints(RunConfig)
    return RunConfig(**{name: _checked(name, value, hints[name]) for name, value in values.items()})


def load(path: Path | None, overrides: Sequence[str] = (), defaults: Mapping[str, Any] | None = None) -> RunConfig:
    """A config from values, a TOML file and words ``name=value``, ``hyper.name=value``, of which the last wins.

    Raises:
        ValueError: If the file cannot be read or is no TOML, or a word has no ``=``; see also `from_dict`.
        FileNotFoundError: If there is no such file.
    """
    values: dict[str, Any] = dict(defaults or {})
    if path is not None:
        try:
            values |= tomllib.loads(read_text(path))
        except FileNotFoundError as err:
            raise FileNotFoundError(f"there is no file {path}; a run's settings are a TOML file") from err
        except OSError as err:
            raise ValueError(f"cannot read {path}: {err}; a run's settings are a TOML file") from err
        except tomllib.TOMLDecodeError as err:
            raise ValueError(f"{path} is not TOML: {err}") from err
    for word in overrides:
        name, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"an override must read name=value, got {word!r}")
        if name.startswith("hyper."):
            if not isinstance(values.setdefault("hyper", {}), dict):
                raise ValueError(f"hyper must be a table of settings, got {values['hyper']!r}")
            values["hyper"][name.removeprefix("hyper.")] = parsed(text)
        else:
            values[name] = parsed(text)
    return from_dict(values)


def parsed(text: str) -> Any:
    """A word as TOML reads a value (1e-3, true, "text"); ``none`` is None, anything else the word itself."""
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml(config: RunConfig) -> str:
    """TOML that `load` reads back: what differs from the defaults, fingerprints included."""
    lines, tables = [], []
    for f in dataclasses.fields(RunConfig):
        value = getattr(config, f.name)
        if f.name == "hyper":
            if value:
                tables = ["", "[hyper]", *(f"{name} = {_toml(item)}" for name, item in value.items())]
        elif f.default is dataclasses.MISSING or value != f.default:
            lines.append(f"{f.name} = {_toml(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _toml(value: Any) -> str:
    import json

    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _checked(name: str, value: Any, hint: Any) -> Any:
    allowed = _types(hint)
    if isinstance(value, int) and not isinstance(value, bool) and float in allowed:
        if abs(value) > sys.float_info.max:
            raise ValueError(f"{name} must be at most {sys.float_info.max:.3g} in size, got {value!r}")
        return float(value)
    if isinstance(value, bool) and bool not in allowed:
        allowed = ()
    if not isinstance(value, tuple(allowed)):
        words = " or ".join("nothing" if t is type(None) else t.__name__ for t in _types(hint))
        raise ValueError(f"{name} must be {words}, got {value!r}")
    return value


def _types(hint: Any) -> tuple[type, ...]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return tuple(t for arg in typing.get_args(hint) for t in _types(arg))
    if origin is Literal:
        return (str,)
    return (origin,) if isinstance(origin, type) else (hint,)
