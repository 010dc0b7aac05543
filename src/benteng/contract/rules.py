"""The rules of contracts: D rules are checked when a type is defined, P rules on every payload.

The tables are the source of every message and of `docs/reference/contracts.md`; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rule:
    """What is refused, why, and what to do instead. `waivable` rules accept a reviewed `Waive` on the field."""

    what: str
    why: str
    fix: str
    waivable: bool = False


_WAIVE: Final = 'A reviewed exception: Annotated[T, Waive("{rule}", "why it is safe here")]'

RULES: Final[dict[str, Rule]] = {
    "D-names": Rule(
        "A field whose name contains a word that stands for code, a location or an override, or is not plain ASCII",
        "Commands, scripts, SQL, paths and override flags turn a queue into a remote shell (seed, 'payload sempit').",
        "Carry a reference instead (Artifact, Target, an enum). " + _WAIVE.format(rule="D-names"),
        waivable=True,
    ),
    "D-free-text": Rule(
        "Free or unbounded content: at HIGH any str without pattern and max_length, bytes, unbounded collections; "
        "at MEDIUM and HIGH anything untyped",
        "What can hold anything can hold an instruction.",
        "Use an enum, Literal, or a known type (Slug, Sha256, Target ...), or Meta(pattern=..., max_length=...). "
        + _WAIVE.format(rule="D-free-text"),
        waivable=True,
    ),
    "D-pattern": Rule(
        "A pattern that a trailing newline passes, that is not anchored, not ECMA, or that can take exponential time",
        "Python's `$` matches before a trailing newline; the exported JSON Schema must mean the same elsewhere.",
        r"Write ^(?:...)$(?!\n) with max_length, without \A, \Z and nested repeats. " + _WAIVE.format(rule="D-pattern"),
        waivable=True,
    ),
    "D-secret": Rule(
        "A field that by name or type would hold a secret",
        "Payloads are stored, backed up and shown; secrets are named, not carried.",
        "Declare the secret on the job type and use ctx.secret(name). " + _WAIVE.format(rule="D-secret"),
        waivable=True,
    ),
    "D-type": Rule(
        "A type outside the closed list of contract types",
        "What the parser does not know, it cannot make canonical.",
        "Use the types of docs/reference/contracts.md; nested values are Contract classes",
    ),
    "D-strict": Rule(
        "A model whose configuration accepts more than its fields, or writes itself in more than one way",
        "Unknown fields, coercion and aliases let two readers see two payloads.",
        "Derive from Contract and leave its configuration alone (pydantic: extra='forbid', strict=True)",
    ),
    "D-default": Rule(
        "A default that is computed, mutable or no valid value of its field",
        "The same bytes must always mean the same payload.",
        "Use a constant that the field's own type accepts",
    ),
    "D-datetime": Rule(
        "A datetime declared without a time zone",
        "A local time means another instant on another host.",
        "Use datetime (a time zone is then required); a date without time is `date`",
    ),
    "D-source": Rule(
        "Something that is no contract for this tier",
        "Above LOW a contract is a reviewed class; a signature changes too easily.",
        "Write a class that derives from Contract; plain functions are contracts at LOW only",
    ),
    "D-path": Rule(
        "A field path that does not lead to a value that is always there",
        "Operation keys and resources are computed from it on every host.",
        "Name a field of the contract, dotted for nested ones",
    ),
    "D-waiver": Rule(
        "A waiver without a reason of 10 characters, or for a rule that cannot be waived",
        "An exception that nobody can explain was not reviewed.",
        'Write Waive("D-names", "a reason that a reviewer can judge")',
    ),
}

PAYLOAD_RULES: Final[dict[str, Rule]] = {
    "P-bytes": Rule(
        "More bytes than payload_bytes_max",
        "Checked before anything is decoded.",
        "Send references, not content; or raise the type's limit",
    ),
    "P-utf8": Rule("Not valid UTF-8", "Two decoders would see two texts.", "Encode the payload as UTF-8"),
    "P-depth": Rule(
        "Nested deeper than depth_max",
        "Counted before any recursive parser runs.",
        "Flatten the payload",
    ),
    "P-json": Rule("Not one JSON text (RFC 8259)", "Only JSON enters.", "Send one JSON object"),
    "P-duplicate": Rule(
        "The same key twice in one object",
        "First-wins and last-wins readers would see two payloads.",
        "Send each key once",
    ),
    "P-number": Rule(
        "NaN, Infinity, or a number no IEEE double holds, or a token over 64 characters",
        "They are not JSON, and stores damage them.",
        "Send a finite number",
    ),
    "P-integer": Rule(
        "An integer outside +-(2^53-1)",
        "JavaScript, Lua and JSON viewers round it silently.",
        "Send large integers as strings",
    ),
    "P-items": Rule("A collection with more than items_max entries", "Bounded work.", "Split the job"),
    "P-length": Rule(
        "A string longer than its limit",
        "Bounded work.",
        "Shorten it, or declare Annotated[str, Meta(max_length=...)] on the field",
    ),
    "P-text": Rule(
        "NUL, control, bidi, zero-width or surrogate characters in a key or string",
        "They hide content from people and break stores and logs.",
        "Remove the invisible characters; send lines as a list",
    ),
    "P-nfc": Rule(
        "A key or string that is not in Unicode normal form C",
        "One text must have one spelling, or one operation has two keys.",
        "Normalise the text to NFC",
    ),
    "P-unknown": Rule(
        "A field that the contract does not have",
        "Deny by default (seed, 'kontrak payload sempit').",
        "Remove the field or add it to the contract in a new major version",
    ),
    "P-missing": Rule("A required field is absent", "No guessed values.", "Add the field"),
    "P-type": Rule("A value of another type or range than declared", "No coercion.", "Send the declared type"),
    "P-value": Rule(
        "A value that the field's type refuses (choice, format, own check)",
        "Only listed or well-formed values enter.",
        "Send a value that the field allows",
    ),
    "P-timezone": Rule(
        "A datetime without a time zone, or out of range",
        "A local time means another instant on another host.",
        "Add Z or an offset such as +07:00",
    ),
    "P-money": Rule(
        "Money that is not a decimal string",
        "Binary floats round amounts.",
        'Send a string such as "12.50"',
    ),
    "P-window": Rule(
        "A window whose start is not before its end",
        "An empty window never opens; a reversed one is a mistake.",
        "Send start < end",
    ),
}
