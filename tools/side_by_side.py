"""Calls side by side on the GPUs of one machine: each takes the next piece of work that no other has taken."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class Claims:
    """Notes of what is taken, in a folder that the calls share.

    Args:
        folder: The folder, or None where there is one call only.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def take(self, name: str) -> bool:
        """Whether the piece of work of that name is the caller's."""
        if self.folder is None:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            (self.folder / name.replace("/", "-")).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


@contextmanager
def shared_cards(folder: Path) -> Iterator[dict[str, str]]:
    """CUDA's multi-process service while it lasts, so that kernels of several calls run on one card at one time.

    Args:
        folder: For the service's pipes and logs.

    Yields:
        What calls need in their environment; nothing where the machine has no such service, or it does not start.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    here = folder.absolute()
    places = {"CUDA_MPS_PIPE_DIRECTORY": here / "pipe", "CUDA_MPS_LOG_DIRECTORY": here / "log"}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    told = {name: str(place) for name, place in places.items()}
    around = {**os.environ, **told}
    if control is None or subprocess.run([control, "-d"], env=around, check=False).returncode:
        yield {}
        return
    try:
        yield told
    finally:
        subprocess.run([control], input="quit\n", text=True, env=around, check=False)


def side_by_side(commands: Sequence[Sequence[str]], cards: int, environment: Mapping[str, str]) -> int:
    """Deal commands out to cards, and wait for all; an interrupt is passed on.

    Args:
        commands: One a call.
        cards: Number of them.
        environment: What calls have in theirs beside this process's.

    Returns:
        How many of them failed.

    Raises:
        ValueError: If CUDA_VISIBLE_DEVICES names fewer cards.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(card) for card in range(cards)]
    if len(names) < cards:
        raise ValueError(f"{cards} cards were asked for, but CUDA_VISIBLE_DEVICES={visible}; ask for {len(names)}")
    running = [
        subprocess.Popen(command, env={**os.environ, **environment, "CUDA_VISIBLE_DEVICES": names[i % cards]})
        for i, command in enumerate(commands)
    ]
    try:
        return sum(process.wait() != 0 for process in running)
    except KeyboardInterrupt:
        for process in running:
            process.send_signal(signal.SIGINT)
        return sum(process.wait() != 0 for process in running)
