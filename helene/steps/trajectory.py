r"""A run as data: what its update was a function of, step by step.

A zeroth-order update is a function of a few scalars and of z, which follows from the seed. So a run is its scalars and
hyper-parameters: about 8 bytes a step with one direction, replayed without data onto the initial weights, to the bit on
the same class of device. Hyper-parameters that never change are stored once; a schedule is stored as differences of
its bit patterns, which a smooth schedule makes small.

Which methods replay is in the table of docs/optimizers.md; an optimizer says so itself (``optimizer.replayable``).
"""

from __future__ import annotations

import io
import json
import struct
import warnings
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from helene.evaluation.curvature import Source, named
from helene.inputs.files import write_whole
from helene.rules import floors
from helene.steps import saved

if TYPE_CHECKING:
    from helene.steps.base import Base

FORMAT = 1
_ANEW = "start a new Trajectory, or set optimizer.trajectory to None to go on unrecorded"


class Trajectory:
    """Recorded steps of one optimizer.

    ``Trajectory.record(optimizer)`` starts recording; every later step is appended until ``optimizer.trajectory`` is
    set to None. `save`, `load` and `replay` do what they say.

    Attributes:
        header: Format, identity of the optimizer, class of device, first step, what stays constant in each layer; once
            a step is made, fingerprints of the weights before it ("weights", which older files do not have).
        scalars: A list a step.
        changing: A hyper-parameter's values, one a step, by (layer, name), where it is a number that is not constant.
    """

    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        self.scalars: list[list[float]] = []
        self.changing: dict[tuple[int, str], list[float]] = {}
        self._checked: Any = None  # the trained parameters that `check` has looked at last

    def __len__(self) -> int:
        return len(self.scalars)

    @classmethod
    def record(cls, optimizer: Base) -> Trajectory:
        """Start recording an optimizer's steps.

        Raises:
            ValueError: If its update is not a function of the scalars and z.
        """
        if not optimizer.replayable:
            raise ValueError(
                f"{type(optimizer).__name__} here is not replayable: its update needs gradients, not a few scalars; "
                "keep checkpoints instead (helene.integrations.checkpoints)"
            )
        trajectory = cls(
            {
                "format": FORMAT,
                "identity": optimizer.identity(),
                "device": optimizer.device_class(),
                "first_step": optimizer.param_groups[0]["step"] + 1,
                "layers": [_hyper(optimizer, i) for i in range(len(optimizer.param_groups))],
            }
        )
        optimizer.trajectory = trajectory
        return trajectory

    def check(self, optimizer: Base, step: int) -> None:
        """Make sure that the step to come can be recorded, before anything moves (called by the optimizer).

        Raises:
            ValueError: If the steps do not follow one another, parameters or layers have changed, or a hyper-parameter
                that is no number has.
        """
        follows = self.header["first_step"] + len(self)
        if step != follows:
            raise ValueError(f"the recording goes on at step {follows}, the optimizer at {step}; {_ANEW}")
        if len(optimizer.param_groups) != len(self.header["layers"]):
            raise ValueError(
                f"the recording has {len(self.header['layers'])} layers, the optimizer {len(optimizer.param_groups)}; "
                f"{_ANEW}"
            )
        if self._checked is not optimizer.targets:  # which is another list when a parameter was frozen or thawed
            try:
                optimizer.check_identity(self.header["identity"], "recording")
            except ValueError as err:
                raise ValueError(f"{err}; {_ANEW}") from err
            self._checked = optimizer.targets
        if not len(self):
            self.header["weights"] = saved.fingerprints(optimizer.targets)
        for layer in range(len(optimizer.param_groups)):
            for name, value in _hyper(optimizer, layer).items():
                before = self.header["layers"][layer].get(name, value)
                if value != before and not (_is_number(value) and _is_number(before)):
                    raise ValueError(
                        f"{name} of {optimizer.layer_name(layer)} was {before!r} when the recording started and is "
                        f"{value!r}, but only numbers may change in it; {_ANEW}"
                    )

    def append(self, optimizer: Base, step: int, scalars: list[float]) -> None:
        """Note one step that `check` has let pass (called by the optimizer); the same again changes nothing."""
        number = step - self.header["first_step"]
        for layer in range(len(optimizer.param_groups)):
            for name, value in _hyper(optimizer, layer).items():
                known, first = self.changing.get((layer, name)), self.header["layers"][layer].get(name, value)
                if known is not None:
                    known[number:] = [value]
                elif value != first:
                    self.changing[layer, name] = [first] * number + [value]
        self.scalars[number:] = [list(scalars)]

    def replay(self, optimizer: Base, steps: int | None = None) -> None:
        """Make the recorded steps with an optimizer of the same method over the initial weights, without data.

        Args:
            optimizer: A fresh one, or one whose state_dict is that of the recording's start. Its hyper-parameters are
                set to the recorded ones; a schedule given as a function is not asked.
            steps: How many, all unless given.

        Raises:
            ValueError: If more steps are asked for than were recorded, or the method, the noise version, the
                parameters, their weights or the step do not fit; nothing is then changed.
        """
        if steps is not None and not 0 <= steps <= len(self):
            raise ValueError(f"steps must be in 0 to {len(self)}, as many as were recorded, got {steps!r}")
        optimizer.check_identity(self.header["identity"], "trajectory")
        step = optimizer.param_groups[0]["step"] + 1
        if step != self.header["first_step"]:
            first = self.header["first_step"]
            way_out = f"load model and optimizer as they were after step {first - 1}" if first > 1 else "make a new one"
            raise ValueError(f"the trajectory starts at step {first}, the optimizer is at {step}; {way_out}")
        if optimizer.device_class() != self.header["device"]:
            warnings.warn(
                f"recorded on {self.header['device']}, replayed on {optimizer.device_class()}: equal but for rounding",
                stacklevel=2,
            )
        if len(optimizer.param_groups) != len(self.header["layers"]):
            raise ValueError(
                f"the trajectory has {len(self.header['layers'])} layers, the optimizer {len(optimizer.param_groups)}; "
                "make the groups as they were (after HeleneTrainer: helene.layer_groups(model))"
            )
        self._check_weights(optimizer)
        before, count = [dict(group) for group in optimizer.param_groups], len(self) if steps is None else steps
        try:
            for group, constants in zip(optimizer.param_groups, self.header["layers"], strict=True):
                group.update({name: floors.from_json(value) for name, value in constants.items() if name in group})
            for i in range(count):
                self._check_step(optimizer, i, step + i)
        except BaseException:
            for group, values in zip(optimizer.param_groups, before, strict=True):
                group.update(values)
            raise
        optimizer.take_ids(self.header["identity"])
        for i, scalars in enumerate(self.scalars[:count]):
            self._set(optimizer, i)
            plan = optimizer.plan(scheduled=False)
            if scalars:
                optimizer.apply(plan, scalars)
            else:
                optimizer.note(plan, [])  # its losses were not finite, and it moved nothing

    def _check_weights(self, optimizer: Base) -> None:
        """Raise ValueError unless the weights are those that the first step moved, where this is known."""
        if "weights" not in self.header:
            return
        found = zip(optimizer.targets, saved.fingerprints(optimizer.targets), self.header["weights"], strict=True)
        differ = [target.name for target, mine, recorded in found if mine != recorded]
        if differ:
            raise ValueError(
                f"{differ[0]} does not have the weights that the recording started from ({len(differ)} of "
                f"{len(optimizer.targets)} parameters do not); load those into the model before replay"
            )

    def _set(self, optimizer: Base, number: int) -> None:
        for (layer, name), values in self.changing.items():
            optimizer.param_groups[layer][name] = values[number]

    def _check_step(self, optimizer: Base, number: int, step: int) -> None:
        """Raise ValueError unless a recorded step can be made, before any is."""
        self._set(optimizer, number)
        found, wanted = len(self.scalars[number]), optimizer.num_scalars_at(step)
        if found not in (0, wanted):
            raise ValueError(f"step {step} of the trajectory has {found} scalars, the method needs {wanted}")

    def save(self, path: str | Path) -> None:
        """Write a compressed npz file of that name, with whatever suffix; it appears whole or not at all.

        Raises:
            OSError: If it cannot be written, or the path is no regular file's.
        """
        columns: list[np.ndarray] = []
        index = {}
        for (layer, name), values in self.changing.items():
            column = np.asarray(values, np.float64)
            same = [i for i, other in enumerate(columns) if np.array_equal(column, other)]
            if not same:
                columns.append(column)
            index[f"{layer}:{name}"] = same[0] if same else len(columns) - 1
        counts = [len(scalars) for scalars in self.scalars]
        arrays: dict[str, Any] = {
            "header": np.frombuffer(json.dumps({**self.header, "changing": index}).encode(), np.uint8),
            "counts": np.asarray(counts, np.uint32),
            "scalars": _transposed(np.asarray([c for scalars in self.scalars for c in scalars], np.float64)),
        }
        for i, column in enumerate(columns):
            arrays[f"column{i}"] = _differences(column)

        def write(partial: Path) -> None:
            with partial.open("wb") as file:
                np.savez_compressed(file, **arrays)

        write_whole(path, write)

    @classmethod
    def load(cls, path: str | Path) -> Trajectory:
        """Read what `save` wrote.

        Raises:
            ValueError: If it is no trajectory, of another format, damaged, or holds what no run has recorded.
            OSError: If it cannot be read.
        """
        data = Path(path).read_bytes()
        try:
            with np.load(io.BytesIO(data)) as file:
                header = json.loads(file["header"].tobytes()) if "header" in file else {}
                if header.get("format") == FORMAT:
                    return cls._of(header, file)
        except _DAMAGED as error:
            raise ValueError(
                f"{path} is no trajectory: {' '.join(str(error).split()) or type(error).__name__}; it may be damaged, "
                "take another copy"
            ) from error
        raise ValueError(f"{path} is no trajectory of format {FORMAT}; it may come from another version of helene")

    @classmethod
    def _of(cls, header: dict[str, Any], file: Any) -> Trajectory:
        trajectory = cls({key: value for key, value in header.items() if key != "changing"})
        flat = np.ascontiguousarray(file["scalars"].reshape(8, -1).T).view(np.float64).reshape(-1)
        counts = file["counts"]
        ends = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
        first, layers = header["first_step"], header["layers"]
        _expect(counts.ndim == 1 and ends[-1] == len(flat), f"{len(flat)} scalars for {ends[-1]} counted")
        _expect(bool(np.isfinite(flat).all()), "a scalar that is not finite")
        _expect(type(first) is int and 1 <= first < (1 << 32) - len(counts), f"{first!r} as its first step")
        _expect(isinstance(header["device"], str) and isinstance(header["identity"]["parameters"], list), "no identity")
        weights = header.get("weights", [[0, 0]] * len(header["identity"]["parameters"]))
        _expect(len(weights) == len(header["identity"]["parameters"]), f"{len(weights)} weights' fingerprints")
        _expect(all(isinstance(one, list) and len(one) == 2 for one in weights), "a fingerprint that is no pair")
        for layer in layers:
            for name, value in layer.items():
                _expect(isinstance(value, _PLAIN) or name == "floor", f"{value!r} as {name} of a layer")
                _expect(name not in ("params", "param_names", "step"), f"{name} of a layer")
        trajectory.scalars = [flat[start:end].tolist() for start, end in pairwise(ends)]
        for key, i in header["changing"].items():
            layer, name = key.split(":", 1)
            column = _undo_differences(file[f"column{int(i)}"])
            _expect(len(column) == len(counts), f"{len(column)} values of {name} for {len(counts)} steps")
            _expect(not np.isnan(column).any(), f"a {name} that is no number")
            first_value = layers[int(layer)].get(name, 0.0)
            _expect(int(layer) >= 0 and _is_number(first_value), f"{name} of layer {layer} as a number")
            whole = isinstance(first_value, int) and bool((column == np.rint(column)).all())
            trajectory.changing[int(layer), name] = [int(v) for v in column] if whole else column.tolist()
        return trajectory


_PLAIN = (type(None), bool, int, float, str)
# What numpy, zipfile, zlib and json raise over a damaged file, and the lookups here.
_DAMAGED = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, OSError, OverflowError, MemoryError,
    NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip


def _expect(met: bool, found: str) -> None:
    if not met:
        raise ValueError(f"it holds {found}")


def _hyper(optimizer: Base, layer: int) -> dict[str, Any]:
    """Hyper-parameters of a layer as JSON takes them."""
    kept: dict[str, Any] = {}
    for name, value in optimizer.hyperparameters(layer).items():
        if isinstance(value, Source):
            value = named(value)
        kept[name] = floors.as_json(value) if callable(value) else value
    return kept


def _is_number(value: Any) -> bool:
    """Whether a column can hold it: its values are float64."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and _fits(value))


def _fits(value: int) -> bool:
    return abs(value) <= 1 << 53


def _transposed(values: np.ndarray) -> np.ndarray:
    """Bytes of equal significance side by side, which compress better."""
    return np.ascontiguousarray(values.view(np.uint8).reshape(-1, 8).T)


_ORDERS = 4


def _differences(values: np.ndarray) -> np.ndarray:
    """Bit patterns differenced as often as makes them smallest; the first element says how often."""
    bits, best = values.view(np.int64), None
    for order in range(_ORDERS + 1):
        size = np.abs(bits[order:].astype(np.float64)).sum()
        if best is None or size < best[0]:
            best = size, np.concatenate([[order], bits]).astype(np.int64)
        bits = bits.copy()
        bits[order + 1 :] = np.diff(bits[order:])
    assert best is not None
    return _transposed(best[1])


def _undo_differences(stored: np.ndarray) -> np.ndarray:
    order, *_ = flat = np.ascontiguousarray(stored.reshape(8, -1).T).view(np.int64).reshape(-1)
    _expect(0 <= int(order) <= _ORDERS, f"a column of differences of order {order}")
    bits = flat[1:].copy()
    for k in range(int(order) - 1, -1, -1):
        bits[k:] = np.cumsum(bits[k:])
    return bits.view(np.float64)
