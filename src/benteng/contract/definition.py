"""Judge a contract when it is defined: names, types, patterns, defaults and configuration, by tier.

Runs at import, once per type, over every nested record, list, union and alias. The first broken rule is raised with
its field, its reason and its fix; `rules.RULES` says what each rule is for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, get_origin

from benteng.contract.node import Field, Form, Node, Place, is_fixed, places
from benteng.contract.parser import clean_name
from benteng.contract.rules import RULES
from benteng.contract.types import Kind
from benteng.errors import DefinitionError
from benteng.policy import Tier

FORBIDDEN_WORDS: Final = frozenset(
    {"command", "cmd", "script", "shell", "sql", "template", "eval", "exec", "override", "force", "path"}
)
"""Words that no field name may contain: they stand for code, a location, or a way round the rules (D-names)."""

SECRET_WORDS: Final = ("password", "passwd", "secret", "token", "api_key", "apikey", "credential", "private_key")
"""Words, or runs of words, that name a secret (D-secret)."""

SHELL_LINES: Final = ("; id", "$(id)", "`id`", "a b", "../a", "a|b", "a&b", "' or 1")
"""Texts that no pattern at HIGH may accept: one that does is free text with a pattern on it (D-free-text)."""


def check(root: Node, tier: Tier, *, linear_patterns: bool = False) -> None:
    """Refuse a contract that its tier does not allow.

    `linear_patterns`: patterns are matched by an engine that has no backtracking and whose `$` is the end (pydantic).

    Raises DefinitionError: the first broken D rule.
    """
    _check_fields(root, "")
    for place in places(root):
        _check_fields(place.node, place.dotted)
        _check_place(place, tier, linear_patterns=linear_patterns)


def broken(rule: str, reason: str, field: str = "") -> DefinitionError:
    """Return the error for a D rule, with the table's fix."""
    return DefinitionError(rule, reason, field=field, fix=RULES[rule].fix)


def words_of(name: str) -> tuple[str, ...]:
    """Return the lower-case words of a snake_case, kebab-case or camelCase name, plurals made singular."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])", "_", name)
    return tuple(word.lower().removesuffix("s") for word in re.split(r"[^A-Za-z]+", spaced) if word)


def _check_place(place: Place, tier: Tier, *, linear_patterns: bool) -> None:
    found = list(_node_flaws(place.node, tier, linear_patterns=linear_patterns))
    if place.field is not None:
        found = [*_name_flaws(place.field), *found]
    for rule, reason in found:
        if rule not in place.waived:
            raise broken(rule, reason, place.dotted)


Flaws = Iterator[tuple[str, str]]


def _name_flaws(field: Field) -> Flaws:
    for name in dict.fromkeys((field.name, field.encoded)):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_\-]{0,63}", name):
            yield "D-names", "the name is not 1-64 ASCII letters, digits, _ or -"
        words = words_of(name)
        if hit := next((word for word in words if word in FORBIDDEN_WORDS), ""):
            yield "D-names", f"the word '{hit}' stands for code, a location or an override"
        if _names_secret(words):
            yield "D-secret", "the name says that it holds a secret"


_SECRET_RUNS: Final = tuple("_" + "_".join(words_of(entry)) + "_" for entry in SECRET_WORDS)


def _names_secret(words: tuple[str, ...]) -> bool:
    line = "_" + "_".join(words) + "_"
    return any(run in line for run in _SECRET_RUNS)


def _node_flaws(node: Node, tier: Tier, *, linear_patterns: bool) -> Flaws:
    yield from _type_flaws(node)
    if pattern := node.limit("pattern"):
        yield from _pattern_flaws(str(pattern), node.limit("max_length"), linear=linear_patterns)
    if tier is not Tier.LOW and node.form is Form.ANY:
        yield "D-free-text", "an untyped value is refused above LOW"
    if tier is Tier.HIGH:
        yield from _free_flaws(node)


def _type_flaws(node: Node) -> Flaws:
    name = getattr(node.type, "__name__", "")
    if any(type(mark).__name__.startswith("Secret") for mark in node.marks) or name.startswith("Secret"):
        yield "D-secret", "the type holds a secret"
    if node.form is Form.UNKNOWN:
        yield "D-type", f"the type {clean_name(name or type(node.type).__name__)} is not one of the contract types"
    if any(isinstance(mark, type) or get_origin(mark) for mark in node.marks):
        yield "D-type", "a type stands where a mark should, and would be ignored: write Audited(), Meta(max_length=...)"
    if node.form is Form.DATETIME and node.limit("tz") is False:
        yield "D-datetime", "declared without a time zone"
    if node.form is Form.MAP:
        yield from _map_flaws(node)


def _map_flaws(node: Node) -> Flaws:
    key = node.parts[0]
    if key.form not in {Form.STR, Form.CHOICE, Form.UUID}:
        yield "D-type", "a map's keys are strings, choices or UUIDs"
    if key.mark(Kind):
        yield "D-type", "a reference cannot be a map's key"


def _free_flaws(node: Node) -> Flaws:
    match node.form:
        case Form.STR:
            yield from _text_flaws(node)
        case Form.BYTES:
            yield "D-free-text", "bytes are refused at HIGH"
        case Form.ARRAY | Form.MAP if not is_fixed(node) and node.limit("max_length") is None:
            yield "D-free-text", "a collection at HIGH needs Meta(max_length=...)"
        case _:
            return


def _text_flaws(node: Node) -> Flaws:
    pattern, longest = node.limit("pattern"), node.limit("max_length")
    if pattern is None or longest is None:
        yield "D-free-text", "a string at HIGH needs a pattern and a max_length"
    elif _accepts_shell(str(pattern), longest):
        yield "D-free-text", "the pattern lets shell, path or SQL text pass"


def _accepts_shell(pattern: str, longest: int) -> bool:
    try:
        return any(re.search(pattern, line) for line in SHELL_LINES if len(line) <= longest)
    except re.error:
        return True


_NOT_ECMA: Final = re.compile(r"\\[AZ]|\(\?(?![:=!]|<[=!])|[*+?}]\+")
_ONE_CLASS: Final = re.compile(r"\^(?:\[(?:[^\]\\]|\\.)+\]|\\d)\{([0-9]+)\}\$")
_NESTED_REPEAT: Final = re.compile(r"\([^()]*(?:[*+]|,\d*\})[^()]*\)(?:[*+]|\{)")


def _pattern_flaws(pattern: str, longest: int | None, *, linear: bool) -> Flaws:
    outline = _outline(pattern)
    if _NOT_ECMA.search(re.sub(r"\[(?:[^\]\\]|\\.)*\]|\\\\", "x", pattern)):
        yield "D-pattern", "the pattern is not valid ECMA (\\A, \\Z, inline flags, named groups, possessive repeats)"
    if not pattern.startswith("^") or _has_top_level_choice(outline):
        yield "D-pattern", "the pattern is not anchored at both ends"
    if not linear:
        yield from _backtracking_flaws(pattern, outline, longest)
    elif not outline.endswith("$"):
        yield "D-pattern", "the pattern is not anchored at both ends"


def _backtracking_flaws(pattern: str, outline: str, longest: int | None) -> Flaws:
    exact = _ONE_CLASS.fullmatch(pattern)
    closed_by_length = exact is not None and longest == int(exact[1])
    if not closed_by_length and not (pattern.endswith(r"$(?!\n)") and outline.endswith("$(?!x)")):
        yield "D-pattern", "a trailing newline passes the pattern"
    if longest is None:
        yield "D-pattern", "a pattern needs a max_length, which is checked with it"
    if _NESTED_REPEAT.search(outline):
        yield "D-pattern", "a repeat within a repeat can take exponential time"


def _outline(pattern: str) -> str:
    """Return the pattern with escapes and character classes replaced by `x`, so that only its structure is left."""
    return re.sub(r"\[\^?\]?(?:[^\]\\]|\\.)*\]|\\.", "x", pattern, flags=re.DOTALL)


def _has_top_level_choice(outline: str) -> bool:
    depth = 0
    for sign in outline:
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            return True
    return False


def _check_fields(node: Node, at: str) -> None:
    names = Counter(name for field in node.fields for name in {field.name, field.encoded})
    if clash := next((name for name, count in names.items() if count > 1), ""):
        raise broken("D-strict", "one field's name in Python is another field's name in JSON", clean_name(clash))
    if node.form is Form.RECORD:
        _check_config(node, at)


_CONFIG: Final[dict[str, Callable[[object], bool]]] = {
    "forbid_unknown_fields": lambda value: value is True,
    "frozen": lambda value: value is True,
    "omit_defaults": lambda value: not value,
    "array_like": lambda value: not value,
}


def _check_config(node: Node, at: str) -> None:
    config = getattr(node.type, "__struct_config__", None)
    if config is None:  # a pydantic model: its adapter has judged the configuration
        return
    for name, accepts in _CONFIG.items():
        if not accepts(getattr(config, name)):
            raise broken("D-strict", f"the class configures {name} otherwise than Contract does", at)
