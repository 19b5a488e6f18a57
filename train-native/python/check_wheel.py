"""Checks what a release's wheel holds: build.sh runs it.

    python check_wheel.py WHEEL

The module needs no symbol of glibc after 2.28 and no library beyond those of manylinux_2_28; kiln-mini, the licences
and the types are inside, nothing is that should not be; and the wheel is small.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

MOST_BYTES = 45_000_000
NEWEST_GLIBC = (2, 28)


def glibc_versions(path: Path) -> set[tuple[int, ...]]:
    """The versions of glibc whose symbols a shared object asks for."""
    versions = set()
    with path.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for _, needed in section.iter_versions():
                    for version in needed:
                        match = re.fullmatch(r"GLIBC_([0-9.]+)", version.name)
                        if match:
                            versions.add(tuple(int(part) for part in match[1].split(".")))
    return versions


def has_static_tls(path: Path) -> bool:
    """Whether a shared object can only be loaded while there is room for its thread-local memory."""
    with path.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        return any(tag.entry.d_tag == "DT_FLAGS" and tag.entry.d_val & 0x10 for tag in dynamic.iter_tags())


def main() -> None:
    wheel = Path(sys.argv[1])
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1e6:.1f} MB")
    if size > MOST_BYTES:
        sys.exit(f"error: the wheel has {size} bytes, more than {MOST_BYTES}")
    if not re.fullmatch(r"kiln_embed-[^-]+-cp39-abi3-manylinux_2_28_x86_64\.whl", wheel.name):
        sys.exit(f"error: {wheel.name} is not for abi3 of Python 3.9 and manylinux_2_28 on x86-64")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        for ending in ["kiln-mini.kiln", "py.typed", "_native.pyi", "_native.abi3.so", "LICENSE-MIT", "LICENSE-APACHE"]:
            if sum(name.endswith(ending) for name in names) != 1:
                sys.exit(f"error: the wheel should have one {ending}; it has {', '.join(names)}")
        odd = [name for name in names if name.endswith((".pyc", ".rs", ".toml", ".sh")) or "test" in name]
        if odd:
            sys.exit(f"error: the wheel should not have {', '.join(odd)}")
        module = next(name for name in names if name.endswith(".so"))
        path = Path(archive.extract(module, folder))
        if has_static_tls(path):
            sys.exit(f"error: {module} asks for static thread-local memory, of which other packages then find too little")
        newest = max(glibc_versions(path))
        print(f"{module}: {path.stat().st_size / 1e6:.1f} MB, newest symbol GLIBC_{'.'.join(map(str, newest))}")
        if newest > NEWEST_GLIBC:
            sys.exit(f"error: {module} needs glibc {newest}, newer than {NEWEST_GLIBC}")
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True, check=True
    ).stdout
    print(" ".join(shown.split()))
    if "manylinux_2_28_x86_64" not in shown and "manylinux_2_17_x86_64" not in shown:
        sys.exit("error: auditwheel does not find the wheel consistent with manylinux_2_28")


if __name__ == "__main__":
    main()
