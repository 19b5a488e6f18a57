#!/usr/bin/env python3
"""Compiles a CUDA kernel of cubecl's for the CPU: `emulate.py SOURCE LIBRARY`. The library has `run_grid`, for driver.c.

The source stays as it is, but for what the CPU has no word for: inline assembly of the tensor cores becomes calls of
emulator.h. A kernel that uses the copy engine, or other assembly, is refused.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

COPY_ENGINE = ("tensor_map_", "cuda/barrier", "cuda/ptx", "cp.async")
KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\(\d+\)\s*(\w+)\s*\((.*?)\n\) \{', re.S)
# Functions of one PTX instruction each: a product of two tiles, and the moves of tiles from and to shared memory.
INSTRUCTION = re.compile(r"inline __device__ void\s+(__(?:mma|ldmatrix|stmatrix)_\w+)\(([^)]*)\) \{.*?\n    \}", re.S)


def names(parameters):
    return [parameter.strip().split()[-1].lstrip("&*") for parameter in parameters.split(",")]


def instruction(match):
    """The function with the same parameters that calls the emulator."""
    name, parameters = match.groups()
    registers = names(parameters)
    if "__mma_" in name:
        a, b, c, d = registers[0:4], registers[4:6], registers[6:10], registers[10:14]
        if "m16n8k8" in name:
            call = "mma_m16n8k8"
        else:
            call = f"mma_m16n8k16<{'__nv_bfloat16' if 'bfloat16' in name else '__half'}>"
        body = (
            f"uint32_t a[] = {{{', '.join(a)}}}, b[] = {{{', '.join(b)}}}; float c[] = {{{', '.join(c)}}}; "
            f"float *d[] = {{{', '.join('&' + register for register in d)}}}; {call}(a, b, c, d);"
        )
    else:
        loads = "__ldmatrix_" in name
        transposed = "true" if "trans" in name else "false"
        *tiles, row = registers
        body = (
            f"{'uint32_t' if loads else 'const uint32_t'} *tiles[] = {{{', '.join('&' + tile for tile in tiles)}}}; "
            f"{'ldmatrix' if loads else 'stmatrix'}({len(tiles)}, {transposed}, tiles, {row});"
        )
    return f"inline __device__ void {name}({parameters}) {{ {body} }}\n"


def translate(source):
    for word in COPY_ENGINE:
        if word in source:
            sys.exit(f"it uses the copy engine ({word})")
    source = INSTRUCTION.sub(instruction, source)
    if re.search(r"\basm\b", source):
        sys.exit("it has assembly that is not known here")
    kernel = KERNEL.search(source)
    if not kernel:
        sys.exit("it has no kernel of the known form")
    name, parameters = kernel.groups()
    if "__mma_" in source:
        # cubek writes tiles without the barrier that their readers of the same warp need (see CONTRIBUTING.md, CUDA):
        # every thread of a warp writes before any goes on.
        write = r"^( *(?:_tmp_|shared_memory_)\d+\[[^\n]*\] = [^\n]*;)$"
        source = re.sub(write, r"\1 yield_in_warp();", source, flags=re.M)
    source = source.replace('extern "C" __global__ void', "static __global__ void", 1)
    types = [
        re.sub(r"\b(__restrict__|__grid_constant__)\b", "", parameter.strip().rsplit(None, 1)[0])
        for parameter in parameters.split(",")
        if parameter.strip()
    ]
    arguments = ", ".join(f"*(std::remove_const_t<{kind}> *)arguments[{i}]" for i, kind in enumerate(types))
    return f"{source}\nstatic void call_kernel(void **arguments) {{ {name}({arguments}); }}\n"


def main(source, library):
    text = translate(Path(source).read_text())
    # Several processes may compile the same kernel.
    cpp, unfinished = Path(f"{library}.{os.getpid()}.cc"), f"{library}.{os.getpid()}"
    cpp.write_text(text)
    here = Path(__file__).resolve().parent
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-mf16c", "-mfma", "-ffp-contract=fast", "-fno-strict-aliasing", "-w", "-fPIC", "-shared",
         "-fvisibility=hidden", f"-I{here}/include", cpp, "-o", unfinished],
        check=True,
    )
    Path(unfinished).rename(library)
    cpp.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
