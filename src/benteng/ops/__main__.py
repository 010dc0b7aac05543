"""`python -m benteng.ops`: the command line, also where the script `benteng` is not on the path."""

from __future__ import annotations

from benteng.ops.cli import main

if __name__ == "__main__":
    main(prog_name="benteng")
