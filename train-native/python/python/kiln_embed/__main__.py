"""The command `kiln`: `kiln ...`, `kiln-embed ...` or `python -m kiln_embed ...`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command on the arguments of this process, and ends the process with its exit code."""
    from kiln_embed import _native

    # What follows listens for Ctrl-C itself.
    sys.exit(_native.main(["kiln", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
