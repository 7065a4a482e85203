"""Where and with what a result was made, in words that may be published: no machine paths, no host or user names."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("helene", "torch", "triton", "numpy", "scipy", "scikit-learn", "matplotlib", "transformers", "peft")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def provenance(command: str | Sequence[str] | None = None) -> dict[str, Any]:
    """Describe this process and machine.

    Versions come from the installed metadata, so that nothing is imported for them. Outside a git checkout (or when
    installed from a wheel) ``commit`` and ``dirty`` are None, unless the environment variable HELENE_COMMIT names the
    commit of a copy that was made without its history. No network is used.

    Args:
        command: What the reader would type, as a string or a list of words; default the command line of this process.
            Absolute paths in it are shortened to their last part.

    Returns:
        commit, dirty, versions, cpu, cpus, gpu (names or None), threads, platform, command, timestamp (UTC).
    """
    words = _command_line() if command is None else shlex.split(command) if isinstance(command, str) else command
    commit, dirty = _git_state()
    return {
        "commit": commit,
        "dirty": dirty,
        "versions": _versions(),
        "cpu": _cpu_model(),
        "cpus": _num_cpus(),
        "gpu": _gpu_models(),
        "threads": _threads(),
        "platform": f"{platform.system()} {platform.machine()}",
        "command": public_command(words),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _command_line() -> Sequence[str]:
    """What was typed; of a module that was run with ``-m``, sys.argv has the file in its place."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name == "__main__" or spec.origin != sys.argv[0]:
        return sys.argv
    return ["python", "-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]]


def public_command(words: Sequence[str]) -> str:
    """The command line without machine paths: the program's name, and absolute paths cut to their last part."""
    if not words:
        return ""
    program = Path(words[0]).name
    if program in {"__main__.py", "-c", "-m"}:
        program = "python"
    return shlex.join([program, *(_public_word(word) for word in words[1:])])


def _public_word(word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and not re.search(r"[/\\~]", name):
        return f"{name}={_public_word(value)}"
    return re.split(r"[/\\]", word.rstrip("/\\"))[-1] if os.path.isabs(word) or word.startswith("~") else word


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git_state() -> tuple[str | None, bool | None]:
    """Commit and dirty flag of the checkout that this very file is tracked in.

    A wheel installed into a virtual environment inside some checkout is not tracked there: that commit says nothing.
    """
    if stated := os.environ.get("HELENE_COMMIT"):
        return stated, None
    this_file = Path(__file__).resolve()
    if _git(this_file.parent, "ls-files", "--error-unmatch", this_file.name) is None:
        return None, None
    commit = _git(this_file.parent, "rev-parse", "HEAD")
    changes = _git(this_file.parent, "status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or None
    match = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or None


def _num_cpus() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _gpu_models() -> list[str] | None:
    """Names of the GPUs, from torch when it is loaded already, else from the driver's own files."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    try:
        texts = [p.read_text() for p in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    except OSError:
        return None
    names = [match[1].strip() for text in texts if (match := re.search(r"^Model:\s*(.+)$", text, re.MULTILINE))]
    return names or None


def _threads() -> dict[str, int | str]:
    threads: dict[str, int | str] = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    torch = sys.modules.get("torch")
    if torch is not None:
        threads["torch"] = torch.get_num_threads()
    return threads
