"""What each kind of cell holds, by name of the vector: the table that the tests prove and the docs are made from.

MEDIUM and HIGH hold everything. What is not named for LOW is not promised there.
"""

from __future__ import annotations

SIGNALS = (
    "signal_victim",
    "signal_group",
    "signal_thread",
    "signal_by_queue",
    "signal_by_pidfd",
    "signal_by_input",
    "signal_by_ioctl",
)
"""Ways to signal somebody."""

SHARES = (
    "slow_victim",
    "pin_victim",
    "idle_victim",
    "idle_victim_by_attributes",
    "limit_victim",
)
"""Ways to take somebody's share of the machine."""

LOW = frozenset(
    [
        "read_ledger",
        "read_ledger_by_victims_root",
        "read_ledger_uncovered",
        "read_ledger_in_own_space",
        "read_by_proc_cwd",
        "read_victims_memory",
        "read_victims_memory_by_file",
        "read_victims_environment",
        "take_victims_descriptor",
        "reopen_victims_descriptor",
        "trace_victim",
        "write_victims_memory",
        "use_inherited_descriptor",
        "become_root",
        "much_memory",
        "one_big_file",
        "many_descriptors",
    ]
)
"""What a LOW cell of the worker's own user holds: the ledger, other processes, the bounds."""

LOW_OWN_UID = LOW | frozenset(
    [
        *SIGNALS,
        *SHARES,
        "read_by_handle",
        "kernel_log",
        "change_times",
        "create_device",
        "change_mode",
        "change_owner",
        "change_mode_of_app",
        "change_times_of_app",
        "write_to_app",
        "truncate_app_by_open",
        "mount_something",
        "change_root",
        "socket_packet",
        "socket_raw",
        "kernel_program",
        "new_network_namespace",
    ]
)
"""What a LOW cell of a pool with its own uid holds besides."""

FORKS = frozenset(["fork", "fork_daemon", "fork_by_number", "fork_by_clone"])
"""What a list of programs leaves to a cell; it ends with the cell."""

IMPORT_MAY = FORKS | frozenset(
    [
        "hold_victim",
        "lose_parent_tie",
        "second_filter",
        "second_filter_by_prctl",
        "second_listener",
        "much_memory",
        "one_big_file",
        "many_descriptors",
    ]
)
"""What the pool layer leaves to the zygote, because it makes cells; a hostile import has it until the first fork."""

NOT_A_WAY_OUT = frozenset(["run_listed"])


def as_markdown(vectors: list[str]) -> str:
    """Return the table for docs/reference/isolation.md: the counts, then a row for vectors that end alike."""
    ways = [name for name in vectors if name not in NOT_A_WAY_OUT]
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in ways:
        rows.setdefault(_ended(name), []).append(f"`{name}`")
    head = "| LOW | LOW, own uid | import | MEDIUM, HIGH | with `exec` | vectors |\n|---|---|---|---|---|---|\n"
    held = (sum(ended == "held" for ended in column) for column in zip(*map(_ended, ways), strict=True))
    head += f"| {' | '.join(f'{count} held' for count in held)} | {len(ways)} in all |\n"
    return head + "".join(f"| {' | '.join(ended)} | {', '.join(names)} |\n" for ended, names in rows.items())


def _ended(name: str) -> tuple[str, ...]:
    low = ["held" if name in holds else "not promised" for holds in (LOW, LOW_OWN_UID)]
    ends = "ends with the cell" if name in FORKS else "held"
    return (*low, "left open" if name in IMPORT_MAY else "held", "held", ends)
