"""Calls side by side on the GPUs of one machine: each takes the next piece of work that no other has taken."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
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


def side_by_side(commands: Sequence[Sequence[str]]) -> int:
    """Run a command on each card, and wait for all; an interrupt is passed on.

    Returns:
        How many of them failed.

    Raises:
        ValueError: If CUDA_VISIBLE_DEVICES names fewer cards.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    cards = visible.split(",") if visible else [str(card) for card in range(len(commands))]
    if len(cards) < len(commands):
        raise ValueError(
            f"{len(commands)} cards were asked for, but CUDA_VISIBLE_DEVICES={visible}; ask for {len(cards)}"
        )
    running = [
        subprocess.Popen(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": card})
        for command, card in zip(commands, cards, strict=False)
    ]
    try:
        return sum(process.wait() != 0 for process in running)
    except KeyboardInterrupt:
        for process in running:
            process.send_signal(signal.SIGINT)
        return sum(process.wait() != 0 for process in running)
