"""Make text safe to store, log, show and share: control characters escaped, secrets taken out, length bounded.

Nothing here raises on text, whatever it holds, and time is linear in its length: the failure path cannot fail.
This is the net below the allow-list (only fields marked `Audited` reach a summary), not a replacement for it: who
*wants* to leak can encode a secret in a way that no scrubber knows.
Trust: none of the text; it comes from handlers, their exceptions and their output.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, cast

import msgspec

CLEAN_BYTES_MAX = 8192
LINE_BYTES_MAX = 2048
ERROR_BYTES_MAX = 2048
ERROR_NAME_BYTES_MAX = 128
SECRET_CHARS_MIN = 6
KEY_BYTES_MIN = 16
KEYED_HEX_CHARS = 32

REDACTED = "***"
"""Stands where a secret stood. No bracket or quote, so that cleaning cleaned text again changes nothing."""

CUT = "…[cut]"
"""Ends a text that was longer than its bound; counted in the bound."""

# Unicode general categories Cc and Cs whole, and of Cf and Zl/Zp what reorders, hides or breaks a line. ZWJ and ZWNJ
# (U+200C, U+200D) stay: Persian and Indic spelling and emoji need them.
_HIDDEN = (
    r"\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    r"\U000e0000-\U000e007f"
)
_UNCLEAN = re.compile(rf"[\x00-\x08\x0b-\x1f{_HIDDEN}]")
_UNCLEAN_LINE = re.compile(rf"[\x00-\x1f{_HIDDEN}]")


def clean(text: str, *, bytes_max: int = CLEAN_BYTES_MAX) -> str:
    r"""Return text with newline and tab as its only control characters, in at most `bytes_max` UTF-8 bytes.

    Control (so ANSI sequences too), bidirectional, invisible and lone surrogate characters become `\x1b`, `\u202e`
    and so on; what is too long ends with `CUT`. Cleaning twice changes nothing more.
    """
    return _cut(_UNCLEAN.sub(_escape, text[: bytes_max + 1]), bytes_max)


def clean_line(text: str, *, bytes_max: int = LINE_BYTES_MAX) -> str:
    """Return text as `clean` does, on one line: newline and tab are escaped too (log injection)."""
    return _cut(_UNCLEAN_LINE.sub(_escape, text[: bytes_max + 1]), bytes_max)


class Scrubber:
    """Takes given secrets out of text, also where they are URL-encoded, in base64, hex, JSON- or Python-escaped.

    Exact values of at least 6 characters; a shorter one would tear up ordinary words. The lines of a secret of several
    lines count too, as they are: output is told line by line. Scrub *before* cleaning or cutting: both can change a
    secret beyond recognition.
    """

    __slots__ = ("_needles", "_written")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        kept = [secret for secret in secrets if len(secret) >= SECRET_CHARS_MIN]
        whole = {needle for secret in kept for needle in _encodings(secret)}
        lines = {line.strip() for secret in kept for line in secret.splitlines()}
        self._needles = whole | {line for line in lines if len(line) >= SECRET_CHARS_MIN}
        self._written = {json.dumps(needle, ensure_ascii=False)[1:-1] for needle in self._needles}

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._needles)

    def text(self, text: str) -> str:
        """Return text without the secrets."""
        return _without(text, sorted(span for needle in self._needles for span in _spans(text, needle)))

    def piece(self, text: str) -> str:
        """Return a piece of a longer text without the secrets, nor the part of one that was cut in two at its edges."""
        spans = [span for needle in self._needles for span in (*_spans(text, needle), *_edges(text, needle))]
        return _without(text, sorted(spans))

    def document(self, data: bytes) -> bytes:
        """Return a JSON document as canonical JSON without the secrets, in keys and numbers too.

        It is parsed first: an escape, or a key that stands there twice, hides nothing. Raises ValueError, or
        RecursionError, for what is no JSON.
        """
        value = msgspec.json.decode(data)
        canonical = _canonical(value)
        # Written canonically, whatever stands in a string or number stands here too: most documents are done now.
        if not any(needle in canonical for needle in self._written):
            return canonical.encode()
        return _canonical(self._value(value)).encode()

    def finds(self, data: bytes) -> bool:
        """Whether a JSON document holds a secret. Raises ValueError, or RecursionError, for what is no JSON."""
        return self.document(data) != _canonical(msgspec.json.decode(data)).encode()

    def _value(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case list():
                return [self._value(each) for each in cast("list[Any]", value)]
            case dict():
                pairs = cast("dict[str, Any]", value).items()
                return {self.text(key): self._value(each) for key, each in pairs}
            case _:
                return value if self.text(json.dumps(value)) == json.dumps(value) else REDACTED


def patterns(text: str) -> str:
    """Return text without what looks like a secret: see `PATTERNS`. For secrets that nobody handed out."""
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def error_text(exc_name: str, message: str) -> str:
    """Return `Name: message` of an exception on one line of at most 2048 bytes, without what looks like a secret."""
    name = clean_line(exc_name, bytes_max=ERROR_NAME_BYTES_MAX)
    return clean_line(f"{name}: {patterns(message[: 2 * ERROR_BYTES_MAX])}", bytes_max=ERROR_BYTES_MAX)


def keyed(key: bytes, value: bytes) -> str:
    """Return 32 hex characters that tell equal values from different ones to whoever lacks the key, and nothing else.

    HMAC-SHA256, truncated. A bare hash of a guessable value is the value (DESIGN section 4). Raises ValueError for a
    key below 16 bytes, which would be such a bare hash.
    """
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"the digest key must have at least {KEY_BYTES_MIN} bytes")
    state = _keyed_state(key).copy()
    state.update(value)
    return state.hexdigest()[:KEYED_HEX_CHARS]


@lru_cache(maxsize=8)
def _keyed_state(key: bytes) -> hmac.HMAC:
    """Return HMAC as it is when the key is in it: the same for all values."""
    return hmac.new(key, digestmod="sha256")


# Every quantifier is bounded or possessive: no input makes these slow (tests/test_redact.py tries).
# A value that is cut too generously costs a word of context; one that is cut too short leaks.
_QUOTED = r"""(?:\\{1,4}"[^"\r\n]*+"?|"(?:[^"\\\r\n]|\\.)*+"?|'(?:[^'\\\r\n]|\\.)*+'?)"""
_NAMED = (
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|credentials?|(?:api|access|private|signing)[_-]?key)[\w.-]{0,32}+"
)
_PEM_KIND = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"

PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # PEM private keys, also when the end is missing.
    (re.compile(rf"-----BEGIN {_PEM_KIND}.*?(?:-----END {_PEM_KIND}|\Z)", re.DOTALL), REDACTED),
    # Headers that carry credentials: the quoted value, else the rest of the line (Digest has several parts).
    (
        re.compile(
            r"(?i)((?:authorization|cookie|x-api-key|x-auth-token)[\\\"']{0,4}\s{0,8}[:=]\s{0,8})"
            rf"(?:{_QUOTED}|[^\r\n]++)",
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"(?i)\b(bearer\s{1,8})[\w.~+/-]{6,}+=*+"), rf"\1{REDACTED}"),
    # user:password@ in a URL. A slash in the password is invalid there, and common.
    (re.compile(r"(://)[^\s/?#\"<>:@]{0,256}+(?::[^\s\"<>]{1,512})?@"), rf"\1{REDACTED}@"),
    # password=..., "api_key": "...", and --token ... on a command line.
    (re.compile(rf"(?i)({_NAMED}[\\\"']{{0,4}}\s{{0,8}}[=:]\s{{0,8}})(?:{_QUOTED}|[^\s&]++)"), rf"\1{REDACTED}"),
    (re.compile(rf"(?i)(?<!\w)(--?[\w-]{{0,32}}?{_NAMED}\s{{1,8}})(?:{_QUOTED}|\S++)"), rf"\1{REDACTED}"),
    # Tokens that name themselves: JWT, AWS access key ids, GitHub.
    (re.compile(r"eyJ[\w-]{5,512}+\.[\w-]{5,}+(?:\.[\w-]*+)?", re.ASCII), REDACTED),
    (re.compile(r"(?:AKIA|ASIA)[0-9A-Z]{16}"), REDACTED),
    (re.compile(r"(?:gh[pousr]|github_pat)_\w{20,255}+", re.ASCII), REDACTED),
)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _cut(text: str, bytes_max: int) -> str:
    """Return text, or its beginning and `CUT`, in at most `bytes_max` UTF-8 bytes. No surrogate may be left in it."""
    data = text.encode()
    if len(data) <= bytes_max:
        return text
    marker = CUT if len(CUT.encode()) <= bytes_max else ""
    return data[: max(bytes_max - len(marker.encode()), 0)].decode(errors="ignore") + marker


def _encodings(secret: str) -> Iterator[str]:
    raw = secret.encode(errors="surrogatepass")
    yield from (secret, raw.hex(), raw.hex().upper())
    yield from _url_encodings(raw)
    yield from _base64_encodings(raw)
    for escaped in (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret), ascii(secret)):
        yield from (escaped[1:-1], escaped[1:-1].replace("/", "\\/"))
    yield from (clean(secret, bytes_max=len(raw) * 4), clean_line(secret, bytes_max=len(raw) * 4))


def _url_encodings(raw: bytes) -> Iterator[str]:
    from urllib.parse import quote, quote_plus

    # "/" is safe in paths, "!'()*" in JavaScript's encodeURIComponent.
    for encoded in (quote(raw, safe=""), quote(raw, safe="/"), quote(raw, safe="!'()*"), quote_plus(raw)):
        yield from (encoded, re.sub(r"%..", lambda match: match[0].lower(), encoded))


def _base64_encodings(raw: bytes) -> Iterator[str]:
    """Yield the characters that stand for `raw` in the base64 of a longer text, for its three possible alignments."""
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + raw).decode()
        first_whole = (shift * 8 + 5) // 6
        whole = encoded[first_whole : (shift + len(raw)) * 8 // 6]
        yield from (whole, whole.translate(_URL_SAFE))
    alone = base64.b64encode(raw).decode()
    yield from (alone, alone.translate(_URL_SAFE), alone.rstrip("="), alone.rstrip("=").translate(_URL_SAFE))


_URL_SAFE = str.maketrans("+/", "-_")


def _canonical(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _edges(text: str, needle: str) -> Iterator[tuple[int, int]]:
    """Yield where the text begins with an end of the needle, ends with a beginning of it, or is nothing but a part."""
    size, told = SECRET_CHARS_MIN, text.removesuffix(CUT)
    if len(told) < size:
        return
    if told in needle:
        yield 0, len(told)
    for begin, _ in _spans(needle, told[:size]):
        if told.startswith(needle[begin:]):
            yield 0, len(needle) - begin
    tail = max(0, len(told) - len(needle))
    for begin, _ in _spans(told[tail:], needle[:size]):
        if needle.startswith(told[tail + begin :]):
            yield tail + begin, len(told)


def _spans(text: str, needle: str) -> Iterator[tuple[int, int]]:
    """Yield where the needle stands in the text, overlapping places too."""
    start = text.find(needle)
    while start >= 0:
        yield start, start + len(needle)
        start = text.find(needle, start + 1)


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    """Return the text with each run of overlapping or touching spans (sorted) replaced by one `REDACTED`."""
    parts: list[str] = []
    kept_from = 0
    for begin, end in spans:
        if begin > kept_from or not parts:
            parts.append(text[kept_from:begin])
        kept_from = max(kept_from, end)
    return REDACTED.join([*parts, text[kept_from:]])
