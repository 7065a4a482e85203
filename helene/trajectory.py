r"""A run as data: what its update was a function of, step by step.

A zeroth-order update is a function of a few scalars and of z, which follows from the seed. So a run is its scalars and
hyper-parameters: about 8 bytes a step with one direction, replayed without data onto the initial weights, to the bit on
the same class of device. Hyper-parameters that never change are stored once; a schedule is stored as differences of
its bit patterns, which a smooth schedule makes small.

| methods                                                             | replayable                                |
| ------------------------------------------------------------------- | ----------------------------------------- |
| MeZO, ZOMomentum, ZOConservative, ZOSign, ZOScalarSign, ForwardGrad | yes                                       |
| ZOAdam, ZOAdamW, ZOLion, HiZOO, FZOO                                | yes                                       |
| Helene, ZOSophia, ZONewton                                          | with "spsa", "spsa_own_batch" or "none"   |
| SGD, Adam, AdamW, Lion, SophiaG                                     | no: keep checkpoints                      |
"""

from __future__ import annotations

import json
import warnings
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from helene import floors
from helene.curvature import Source, named
from helene.files import write_whole

if TYPE_CHECKING:
    from helene.optimizers.base import Base

FORMAT = 1
_ANEW = "start a new Trajectory, or set optimizer.trajectory to None to go on unrecorded"


class Trajectory:
    """Recorded steps of one optimizer.

    ``Trajectory.record(optimizer)`` starts recording; every later step is appended until ``optimizer.trajectory`` is
    set to None. `save`, `load` and `replay` do what they say.

    Attributes:
        header: Format, identity of the optimizer, class of device, first step, what stays constant in each layer.
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
                parameters or the step do not fit.
        """
        if steps is not None and not 0 <= steps <= len(self):
            raise ValueError(f"steps must be in 0 to {len(self)}, as many as were recorded, got {steps!r}")
        optimizer.check_identity(self.header["identity"], "trajectory")
        step = optimizer.param_groups[0]["step"] + 1
        if step != self.header["first_step"]:
            raise ValueError(f"the trajectory starts at step {self.header['first_step']}, the optimizer is at {step}")
        if optimizer.device_class() != self.header["device"]:
            warnings.warn(
                f"recorded on {self.header['device']}, replayed on {optimizer.device_class()}: equal but for rounding",
                stacklevel=2,
            )
        for group, constants in zip(optimizer.param_groups, self.header["layers"], strict=True):
            group.update({name: floors.from_json(value) for name, value in constants.items() if name in group})
        for i, scalars in enumerate(self.scalars[:steps]):
            for (layer, name), values in self.changing.items():
                optimizer.param_groups[layer][name] = values[i]
            plan = optimizer.plan(scheduled=False)
            if scalars:
                optimizer.apply(plan, scalars)
            else:
                optimizer.note(plan, [])  # its losses were not finite, and it moved nothing

    def save(self, path: str | Path) -> None:
        """Write a compressed ``.npz`` (the suffix is added if it is missing); it appears whole or not at all.

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

        write_whole(path if str(path).endswith(".npz") else f"{path}.npz", write)

    @classmethod
    def load(cls, path: str | Path) -> Trajectory:
        """Read what `save` wrote.

        Raises:
            ValueError: If it is no trajectory or of another format.
        """
        try:
            opened = np.load(path)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is no trajectory: {error}") from error
        with opened as file:
            if "header" not in file or (header := json.loads(file["header"].tobytes())).get("format") != FORMAT:
                raise ValueError(
                    f"{path} is no trajectory of format {FORMAT}; it may come from another version of helene"
                )
            trajectory = cls({key: value for key, value in header.items() if key != "changing"})
            flat = np.ascontiguousarray(file["scalars"].reshape(8, -1).T).view(np.float64).reshape(-1).tolist()
            ends = [0, *np.cumsum(file["counts"]).tolist()]
            trajectory.scalars = [flat[start:end] for start, end in pairwise(ends)]
            for key, i in header["changing"].items():
                layer, name = key.split(":", 1)
                trajectory.changing[int(layer), name] = _undo_differences(file[f"column{i}"]).tolist()
        return trajectory


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
    bits = flat[1:].copy()
    for k in range(int(order) - 1, -1, -1):
        bits[k:] = np.cumsum(bits[k:])
    return bits.view(np.float64)
