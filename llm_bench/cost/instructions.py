"""What the kernels' machine code holds: instructions an element, registers, spills. Triton compiles it without a GPU.

A GPU's schedulers issue one instruction of 32 threads each cycle, so that instructions bound a kernel's time as bytes
do. Counts are static: both sides of a branch count, and a loop counts once.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from helene import noise
from helene.lab.runs.provenance import provenance
from helene.lab.runs.store import Record, Store
from llm_bench.cost.engine_table import EXPERIMENT

TARGET = ("cuda", 90, 32)  # an H100's and H200's instructions
PER_SECOND = 132 * 4 * 1.98e9  # instructions that an H200 issues at its highest clock
_WARPS = 4
_POINTERS = {"rows": "*i64", "owners": "*i32", "control": "*i64", "values": "*fp32", "hypers": "*fp32"}


def kernels() -> dict[str, dict[str, Any]]:
    """Counts of the copies of both signs and of each method's update, bfloat16 weights, by name.

    Returns:
        ``instructions`` an element, ``registers`` and ``spills`` of a thread, ``by_kind``: the most frequent opcodes.
    """
    from helene.kernels import codes, perturb
    from helene.kernels import update as updates
    from helene.kernels.tiles import NUM_FIELDS, SPAN, STATE_TILE, TILE

    none, bf16 = (codes.NONE, "*fp32"), (codes.BFLOAT16, "*bf16")
    signed, unsigned = (codes.SIGNED, "*i8"), (codes.UNSIGNED, "*u8")
    table = {"WIDTH": NUM_FIELDS, "ALIGNED": True, "QUADS": True}
    drawn = {"ROUNDS": noise.ROUNDS, "FAST": True, "SIGNS": False}
    copied = dict.fromkeys(("theta", "plus", "minus"), "*bf16")
    both = {**table, **drawn, "PLUS": True, "MINUS": True}
    found = {
        "both copies": _count(perturb.perturb, copied, both, TILE),
        "both copies, no rounds of the generator": _count(perturb.perturb, copied, {**both, "ROUNDS": 0}, TILE),
    }
    for name, method, kinds, tile in (
        ("MeZO update", codes.SGD_PLAIN, (none, none), TILE),
        ("HELENE update, bf16 state", codes.HELENE, (bf16, bf16), STATE_TILE),
        ("HELENE update, 8-bit state", codes.HELENE, (signed, unsigned), STATE_TILE),
    ):
        (first, s0), (second, s1) = kinds
        pointers = {"theta": "*bf16", "s0": s0, "s1": s1}
        pointers |= dict.fromkeys(("s0_scales", "s1_scales", "numbers", "weights"), "*fp32")
        constants = {"DIRECTIONS": 1, "RANK": 0, "SCALE": 1.0, "SPAN": SPAN, "HYPERS": codes.NUM_HYPERS}
        constants |= {"METHOD": method, "KIND0": first, "KIND1": second, "STOCHASTIC": True}
        constants |= {"ROUNDING_DRAW": noise.ROUNDING_DRAW, "STATE_DRAW": noise.STATE_DRAW}
        found[name] = _count(updates.update, pointers, {**table, **drawn, **constants}, tile)
    return found


def _count(kernel: Any, pointers: dict[str, str], constants: dict[str, Any], tile: int) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {**constants, "TILE": tile}
    signature = {name: {**_POINTERS, **pointers}.get(name, "constexpr") for name in kernel.arg_names}
    places = {(i,): constants[name] for i, name in enumerate(kernel.arg_names) if name in constants}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name not in constants}
    source = ASTSource(kernel, signature, places, aligned)
    options = {"num_warps": _WARPS, "enable_fp_fusion": "METHOD" not in constants}
    made = triton.compile(source, GPUTarget(*TARGET), options)
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(made.asm["cubin"])
        code, usage = (
            subprocess.run([str(tools / tool), option, str(binary)], capture_output=True, text=True, check=True).stdout
            for tool, option in (("nvdisasm", "-c"), ("cuobjdump", "-res-usage"))
        )
    kinds = Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)", code))
    registers, spills = (int(re.findall(rf"{name}:(\d+)", usage)[-1]) for name in ("REG", "LOCAL"))
    return {
        "instructions": sum(kinds.values()) * _WARPS * 32 / tile,
        "registers": registers,
        "spills": spills,
        "by_kind": dict(kinds.most_common(12)),
    }


def main(arguments: argparse.Namespace) -> int:
    """Count, print, and write ``instructions.jsonl``.

    Raises:
        ValueError: If there is no triton, or it interprets.
    """
    if importlib.util.find_spec("triton") is None:
        raise ValueError("the kernels' compiler is missing: pip install triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise ValueError("TRITON_INTERPRET is 1, so that no machine code is made; unset it")
    found, origin = kernels(), provenance()
    with Store(arguments.out / "instructions.sqlite") as store:
        for name, result in found.items():
            config = {"part": "instructions", "contestant": name, "target": "sm_90", "dtype": "bfloat16"}
            store.put(Record.of(EXPERIMENT, config, {"status": "reached", **result}, origin))
            print(f"{name:40s} {result['instructions']:6.1f} an element, {result['registers']} registers", flush=True)
        store.export_jsonl(arguments.out / "instructions.jsonl", EXPERIMENT)
    return 0
