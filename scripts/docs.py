"""Write into the docs what the code already knows, so that the two cannot differ.

A page marks a block with `<!-- generated: NAME -->` and `<!-- end -->`; what stands between them belongs to the
generator of that name. `--write` replaces the blocks; `--check` exits 1 when a block is stale, a name is unknown or a
generator has no block. To add one: a function without arguments that returns Markdown, and a line in GENERATORS.
"""

from __future__ import annotations

import argparse
import inspect
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benteng.lifecycle import ENTRY, TERMINAL, TRANSITIONS, QuarantineReason, State, operation_after
from benteng.ops.cli import COMMANDS
from benteng.ops.cli import main as main_command
from benteng.ops.exits import MEANINGS, Exit
from benteng.store.postgres.roles import FACET_VERBS, LIMITS, SHARED_VERBS, group
from benteng.worker.sandbox.layers import as_markdown
from benteng.worker.sandbox.seccomp import as_markdown as filter_as_markdown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
OPENING = re.compile(r"^<!-- generated: [a-z-]+ -->$", re.MULTILINE)
BLOCK = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n)(?:(?!<!-- generated: ).)*?(<!-- end -->)", re.DOTALL)
TARGET = re.compile(r"^(?P<name>[a-z]+):.*## (?P<text>.*)$", re.MULTILINE)


ESCAPES = ROOT / "tests" / "worker" / "sandbox" / "escapes"
VECTOR = re.compile(r"^@vector\ndef (\w+)", re.MULTILINE)


def isolation_escapes() -> str:
    """List the ways out that the escape suite goes, by what each kind of cell makes of them."""
    names = VECTOR.findall((ESCAPES / "vectors.py").read_text())
    table: str = runpy.run_path(str(ESCAPES / "outcomes.py"))["as_markdown"](names)
    return table


def make_targets() -> str:
    """List the targets of the Makefile with their own words."""
    found = TARGET.finditer((ROOT / "Makefile").read_text())
    return "".join(["| target | does |\n|---|---|\n", *(f"| `make {m['name']}` | {m['text']} |\n" for m in found)])


def job_life_cycle() -> str:
    """Draw TRANSITIONS: one edge for each pair of states, with its events."""
    edges = [f"    [*] --> {state}" for state in State if state in ENTRY]
    edges += [
        f"    {state} --> {target}: {', '.join(event for event, to in events.items() if to is target)}"
        for state, events in TRANSITIONS.items()
        for target in dict.fromkeys(events.values())
    ]
    edges += [f"    {state} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(["```mermaid", "stateDiagram-v2", *edges, "```", ""])


def operation_life_cycle() -> str:
    """Tabulate what becomes of an operation, for each end of its job and each reason of a quarantine."""
    rows = ["| the job is | never started | after a start |", "|---|---|---|"]
    for state in State:
        reasons = list(QuarantineReason) if state is State.QUARANTINED else [None]
        for reason in reasons:
            fates = [operation_after(state, started=started, reason=reason) for started in (False, True)]
            rows.append(f"| {state}{f' ({reason})' if reason else ''} | {fates[0]} | {fates[1]} |")
    return "\n".join([*rows, ""])


def commands() -> str:
    """Describe every command with its arguments and options, in the order of the overview."""
    context = click.Context(main_command, info_name="benteng")
    found = [(name, command) for name in COMMANDS if (command := main_command.get_command(context, name))]
    return "\n".join(part for name, command in found for part in _command(name, command, context))


def _command(words: str, command: click.Command, above: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=words.rpartition(" ")[2], parent=above)
    yield f"### `benteng {words}`\n\n{inspect.cleandoc(command.help or '')}\n"
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _command(f"{words} {name}", below, context)
        return
    yield f"```console\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    rows = [_option(option) for option in command.params if isinstance(option, click.Option) and not option.hidden]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows, ""])


def _option(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    choices = f" One of: {', '.join(option.type.choices)}." if isinstance(option.type, click.Choice) else ""
    return f"| {names} | {option.help or ''}{' Required.' if option.required else ''}{choices} |"


def exit_codes() -> str:
    """Tabulate the exit codes."""
    rows = [f"| {int(code)} | {code.name.lower()} | {MEANINGS[code]} |" for code in Exit]
    return "\n".join(["| code | name | meaning |", "|---|---|---|", *rows, ""])


def facet_table() -> str:
    """Tabulate which facet may call which verb, with the login's group."""
    rows = [
        f"| {facet} | `{group(facet)}` | {', '.join(f'`{verb}`' for verb in sorted(verbs)) or 'none yet'} |"
        for facet, verbs in FACET_VERBS.items()
    ]
    shared = ", ".join(f"`{verb}`" for verb in sorted(SHARED_VERBS))
    head = ["| facet | group | verbs |", "|---|---|---|"]
    return "\n".join(
        [*head, *rows, "", f"Every facet may also call {shared}: versions, and as whom the ledger knows it.", ""]
    )


def login_limits() -> str:
    """Tabulate the limits of a login of each facet."""
    rows = [
        f"| {facet} | {at.connections} | {at.statement_seconds} s | {at.lock_seconds} s | {at.idle_seconds} s |"
        for facet, at in LIMITS.items()
    ]
    head = ["| facet | connections | a statement | a wait for a lock | an idle transaction |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


GENERATORS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "exit-codes": exit_codes,
    "facet-table": facet_table,
    "job-life-cycle": job_life_cycle,
    "login-limits": login_limits,
    "make-targets": make_targets,
    "operation-life-cycle": operation_life_cycle,
    "isolation-layers": as_markdown,
    "isolation-calls": filter_as_markdown,
    "isolation-escapes": isolation_escapes,
}


def main() -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(description="Generate the generated blocks of the docs.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="replace the blocks")
    mode.add_argument("--check", action="store_true", help="exit 1 when a block is not what its generator says")
    options = parser.parse_args()
    texts = generated()
    if options.write:
        write(texts)
    found = faults(texts)
    for fault in found:
        print(f"docs: {fault}", file=sys.stderr)
    return 1 if found else 0


def generated() -> dict[str, str]:
    """Run every generator."""
    return {name: generate() for name, generate in GENERATORS.items()}


def write(texts: dict[str, str]) -> None:
    """Replace the blocks of all pages."""
    for page in _stale(texts):
        page.write_text(render(page.read_text(), texts))
        print(f"docs: wrote {page.relative_to(ROOT)}")


def faults(texts: dict[str, str]) -> list[str]:
    """Say what is stale, unknown, unused or without an end."""
    pages = {page: page.read_text() for page in _pages()}
    used = {match["name"] for text in pages.values() for match in BLOCK.finditer(text)}
    return [
        *(f"{page.relative_to(ROOT)} is stale: run make docs" for page in _stale(texts)),
        *(f"{page.relative_to(ROOT)}: a generated block has no end" for page, text in pages.items() if _is_open(text)),
        *(f"no generator is called {name}: see scripts/docs.py" for name in sorted(used - texts.keys())),
        *(f"no page has a block for {name}" for name in sorted(texts.keys() - used)),
    ]


def render(page: str, texts: dict[str, str]) -> str:
    """Return the page with each known block replaced."""
    return BLOCK.sub(lambda m: m[1] + texts[m["name"]] + m[3] if m["name"] in texts else m[0], page)


def _stale(texts: dict[str, str]) -> list[Path]:
    return [page for page in _pages() if render(page.read_text(), texts) != page.read_text()]


def _is_open(text: str) -> bool:
    return len(OPENING.findall(text)) != len(BLOCK.findall(text))


def _pages() -> list[Path]:
    return sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))


if __name__ == "__main__":
    sys.exit(main())
