#!/usr/bin/env python3
"""Counts the instructions a code costs in the inner loops of the matrix kernels, from their machine code; no GPU is needed.

    scripts/instructions.py --arch 86 project_in_4 project_out_4

Compiles src/engine/cuda/kernels/layer.cu with $CUDA_HOME/bin/nvcc and disassembles it with nvdisasm ($NVDISASM, or from the
PATH; the Python wheel nvidia-cuda-nvdisasm has it). A loop is what lies between a label and the branch back to it; counted are
the innermost ones that multiply. A multiplication of the tensor cores (IMMA, 16 x 8 x 32) takes 512 codes, 16 a lane, for each
tile of 4 columns; a kernel's name ends with its number of columns, 4 or 8.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/engine/cuda/kernels/layer.cu"
CODES_A_LANE = 16
KINDS = {
    "tensor": ("IMMA",),
    "logic and shifts": ("LOP3", "SHF", "PRMT", "LEA"),
    "f32": ("FFMA", "FMUL", "FADD"),
    "conversions": ("I2F", "HADD2", "F2F"),
    "integer": ("IMAD", "IADD3", "ISETP", "VIADD"),
    "shared memory": ("LDS", "STS"),
    "global memory": ("LDG", "STG", "LDGSTS", "LDGDEPBAR", "UBLKCP"),
    "spills": ("LDL", "STL"),
}


def disassemble(arch):
    nvcc = Path(os.environ["CUDA_HOME"]) / "bin/nvcc" if "CUDA_HOME" in os.environ else "nvcc"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "layer.cubin"
        subprocess.run([nvcc, "-cubin", "-O3", "-std=c++17", f"-arch=sm_{arch}", "-o", cubin, SOURCE], check=True)
        command = [os.environ.get("NVDISASM", "nvdisasm"), "-c", cubin]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def functions(text):
    """Name and lines of each kernel: (label, None, None) or (None, instruction, label it branches to)."""
    found = {}
    lines = None
    for line in text.splitlines():
        if header := re.match(r"\.text\.(\w+):", line):
            lines = found.setdefault(header[1], [])
        elif lines is None:
            continue
        elif label := re.match(r"(\.L_\w+):", line):
            lines.append((label[1], None, None))
        elif code := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*)", line):
            target = re.search(r"\((\.L_\w+)\)", code[2]) if code[1].startswith("BRA") else None
            lines.append((None, code[1].split(".")[0], target and target[1]))
    return found


def inner_loops(lines):
    """Instructions of every innermost loop with a multiplication."""
    at = {label: i for i, (label, _, _) in enumerate(lines) if label}
    loops = [(at[target], i) for i, (_, _, target) in enumerate(lines) if target and at.get(target, i) < i]
    bodies = {}
    for start, end in loops:
        body = [name for _, name, _ in lines[start : end + 1] if name and name != "NOP"]
        if "IMMA" in body:
            bodies[start, end] = body
    inside = lambda a, b: a != b and b[0] <= a[0] and a[1] <= b[1]
    return [body for span, body in bodies.items() if not any(inside(other, span) for other in bodies)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="86", help="compute capability: 80, 86, 89, 90a, 120")
    parser.add_argument("kernels", nargs="*", default=["project_in_4", "project_out_4"])
    options = parser.parse_args()
    known = functions(disassemble(options.arch))
    for kernel in options.kernels:
        if kernel not in known:
            sys.exit(f"{kernel}: no such kernel; there are {', '.join(sorted(known))}")
        tiles = 2 if "8" in kernel.split("_") else 1
        spills = sum(name in KINDS["spills"] for _, name, _ in known[kernel])
        print(f"{kernel}, sm_{options.arch}, {spills} spills")
        for body in inner_loops(known[kernel]):
            counts = Counter(body)
            codes = counts["IMMA"] * CODES_A_LANE / tiles
            print(f"  {len(body)} instructions for {codes:.0f} codes a lane: {len(body) / codes:.2f} a code")
            for kind, names in KINDS.items():
                if number := sum(counts.pop(name, 0) for name in names):
                    print(f"    {kind:17} {number:4}  {number / codes:.3f} a code")
            print(f"    {'the rest':17} {sum(counts.values()):4}  {', '.join(f'{n} {c}' for c, n in counts.most_common(8))}")


if __name__ == "__main__":
    main()
