"""What redact.py promises: nothing harmful and no secret is left in text, and no text makes it fail or slow."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
import unicodedata
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benteng.redact import (
    CUT,
    ERROR_BYTES_MAX,
    PATTERNS,
    REDACTED,
    Scrubber,
    clean,
    clean_line,
    error_text,
    keyed,
    patterns,
)

ANY_TEXT = st.text(st.characters(categories=None) | st.sampled_from("\r\n\t\x1b\u202e\ud800\U000e0041\\"))
SECRET = "pa/ss+w\"örd'\n?"


def scrub(text, secrets):
    """Take secrets out of a text."""
    return Scrubber(secrets).text(text)


@given(ANY_TEXT, st.integers(0, 64))
def test_clean_text_is_bounded_and_stays_as_it_is(text, bytes_max):
    """Whatever the text, clean text fits its bound in UTF-8, and cleaning it again changes nothing."""
    for cleaner in (clean, clean_line):
        once = cleaner(text, bytes_max=bytes_max)

        assert len(once.encode()) <= bytes_max
        assert once == cleaner(once, bytes_max=bytes_max)


@given(ANY_TEXT)
def test_clean_text_has_no_character_that_acts(text):
    """No control, surrogate or bidirectional character is left; newline and tab only in text of several lines."""
    for cleaner, allowed in ((clean, "\n\t"), (clean_line, "")):
        left = [char for char in cleaner(text) if char not in allowed]

        assert set() == {unicodedata.category(char) for char in left} & {"Cc", "Cs", "Zl", "Zp"}
        assert set() == {unicodedata.bidirectional(char) for char in left} & {
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
        }


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a\r\nlevel=info forged", r"a\r\nlevel=info forged"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("adm\u202enimda", r"adm\u202enimda"),
        ("x\u2028y\ufeff\u200b", r"x\u2028y\ufeff\u200b"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("halo dunia é 日本 👩\u200d💻", "halo dunia é 日本 👩\u200d💻"),
    ],
)
def test_line_shows_what_it_does_not_contain(text, expected):
    """A forged line, a terminal escape or a reordering becomes visible text; ordinary writing stays."""
    assert expected == clean_line(text)


def test_clean_text_keeps_its_lines():
    """A traceback stays readable."""
    assert "a\n\tb\\r" == clean("a\n\tb\r")


def test_cut_text_says_so_and_never_splits_a_character():
    """What was longer than its bound ends with the marker, in whole characters."""
    assert "ab" + CUT == clean("ab" + "é" * 40, bytes_max=len(CUT.encode()) + 3)
    assert "é" == clean("ééé", bytes_max=3)


ENCODERS = {
    "raw": str,
    "url": lambda s: quote(s, safe=""),
    "url path": quote,
    "url form": quote_plus,
    "url lower": lambda s: re.sub("%..", lambda match: match[0].lower(), quote(s, safe="")),
    "json": lambda s: json.dumps(s)[1:-1],
    "json utf-8": lambda s: json.dumps(s, ensure_ascii=False)[1:-1],
    "json slash": lambda s: json.dumps(s)[1:-1].replace("/", "\\/"),
    "repr": lambda s: repr(s)[1:-1],
    "hex": lambda s: s.encode().hex(),
    "HEX": lambda s: s.encode().hex().upper(),
    "base64": lambda s: base64.b64encode(s.encode()).decode(),
    "base64 url": lambda s: base64.urlsafe_b64encode(s.encode()).decode(),
    "base64 bare": lambda s: base64.b64encode(s.encode()).decode().rstrip("="),
    "cleaned": clean_line,
}


@pytest.mark.parametrize("encode", ENCODERS.values(), ids=ENCODERS.keys())
def test_scrub_knows_the_ways_a_secret_is_written(encode):
    """A secret that was handed out is gone also where somebody encoded it."""
    assert f"before {REDACTED} after" == scrub(f"before {encode(SECRET)} after", [SECRET])


@pytest.mark.parametrize("alphabet", [base64.b64encode, base64.urlsafe_b64encode])
@given(st.binary(max_size=8), st.binary(max_size=8))
def test_scrub_finds_a_secret_inside_longer_base64(alphabet, before, after):
    """At each of the three alignments (a Basic header is user:password in base64) no useful part of it is left."""
    secret = "correct horse battery"
    encoded = alphabet(before + secret.encode() + after).decode()

    left = scrub(encoded, [secret])

    assert REDACTED in left
    assert len(left) <= len(encoded) - len(secret) * 4 // 3 + 2 + len(REDACTED)


def test_scrub_joins_overlapping_secrets():
    """Two secrets that overlap in the text leave no tail of the second."""
    assert f"x{REDACTED}y" == scrub("xabcdefghiy", ["abcdef", "defghi"])
    assert f"x{REDACTED}y" == scrub("xabcdefghiy", ["abcdefghi", "bcdefg"])
    assert REDACTED == scrub("ababababab", ["ababab", "babab\n"])


def test_scrub_finds_the_lines_of_a_secret():
    """Output is told line by line, so that a key in PEM never stands in one of them as a whole."""
    secret = "-----BEGIN X-----\n  MIIBVAIBADANBg\n-----END X-----"

    assert f"first {REDACTED}" == scrub("first MIIBVAIBADANBg", [secret])


@pytest.mark.parametrize(
    "piece, left",
    [
        (f"and {SECRET[:7]}", f"and {REDACTED}"),
        (f"{SECRET[-7:]} and", f"{REDACTED} and"),
        (f"{SECRET[:7]}{CUT}", f"{REDACTED}{CUT}"),
        (SECRET[3:10], REDACTED),
        (f"and {SECRET[:5]}", f"and {SECRET[:5]}"),
        ("", ""),
    ],
    ids=["end", "start", "cut", "middle", "too-short", "empty"],
)
def test_scrub_finds_the_part_of_a_secret_at_an_edge(piece, left):
    """A text that was cut in two in the middle of a secret shows neither half."""
    assert left == Scrubber([SECRET]).piece(piece)


@pytest.mark.parametrize(
    "document, left",
    [
        ({"a": [f"x{SECRET}", 1, None, True]}, {"a": [f"x{REDACTED}", 1, None, True]}),
        ({SECRET: {"b": "c"}}, {REDACTED: {"b": "c"}}),
        ({"pin": 4711471147}, {"pin": REDACTED}),
        ({"b": 0.25, "a": "é"}, {"b": 0.25, "a": "é"}),
    ],
    ids=["value", "key", "number", "none"],
)
@pytest.mark.parametrize("ensure_ascii", [True, False], ids=["ascii", "utf-8"])
def test_scrub_reads_a_document_as_its_reader_will(document, left, ensure_ascii):
    """Every string, key and number of a result; what holds no secret stays as it is."""
    scrubber = Scrubber([SECRET, "4711471147"])
    data = json.dumps(document, ensure_ascii=ensure_ascii).encode()

    assert left == json.loads(scrubber.document(data))
    assert (document != left) == scrubber.finds(data)


@pytest.mark.parametrize("data", [b'"\\u0073ecret-one"', b'{"a":"secret-one","a":1}'], ids=["escape", "twice"])
def test_scrub_is_not_fooled_by_how_a_document_is_written(data):
    """A cell may write its JSON as it likes; what is kept is written anew."""
    left = Scrubber(["secret-one"]).document(data)

    assert b"ecret-one" not in left


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[" * 5000], ids=["cut", "bytes", "deep"])
def test_scrub_says_what_is_no_document(data):
    """What cannot be read cannot be searched."""
    with pytest.raises((ValueError, RecursionError)):
        Scrubber(["secret-one"]).document(data)


@pytest.mark.parametrize("secret", ["", "a", "short"])
def test_scrub_leaves_words_alone_that_are_too_short(secret):
    """A secret under six characters is not searched for: it would tear up every text."""
    assert "a short text" == scrub("a short text", [secret])


@given(ANY_TEXT, st.lists(ANY_TEXT, max_size=3))
def test_scrub_leaves_no_secret_and_never_fails(text, secrets):
    """On any text and any secrets."""
    left = scrub(text + "".join(secrets), secrets)

    assert [] == [secret for secret in secrets if len(secret) >= 6 and REDACTED not in secret and secret in left]


LEAKS = [
    "Authorization: Bearer {}",
    "authorization: Basic {}",
    'Authorization: Digest username="u", response="{}"',
    '{{"Authorization": "Bearer {}"}}',
    "'Cookie': 'session={}'",
    "a bearer {} in a sentence",
    "password={}",
    "PGPASSWORD={} psql",
    "DB_PASSWORD_FILE: {}",
    '{{"client_secret": "{}"}}',
    '{{"password": "ab\\"{}"}}',
    '"{{\\"api_key\\": \\"{}\\"}}"',
    "{{'access_token': '{}'}}",
    "https://h/x?token={}&a=b",
    "mysqldump --password {} db",
    "postgres://app:{}@db:5432/x",
    "postgres://app:a/b@{}@db",
    "https://{}@github.com/x",
    "redis://:{}@cache",
    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n{}",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n{}\n-----END PGP PRIVATE KEY BLOCK-----",
]


@pytest.mark.parametrize("template", LEAKS, ids=range(len(LEAKS)))
def test_patterns_take_out_what_looks_like_a_secret(template):
    """The places where secrets usually leak: headers, assignments, URLs, command lines, PEM."""
    left = patterns("before " + template.format("CANARY-7f3a"))

    assert "CANARY" not in left
    assert REDACTED in left
    assert left.startswith("before ")


@pytest.mark.parametrize(
    "token",
    [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "AKIAIOSFODNN7EXAMPLE",
        "ASIAIOSFODNN7EXAMPLE",
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2_" * 9,
    ],
)
def test_patterns_take_out_tokens_that_name_themselves(token):
    """A token of a known form is gone wherever it stands, and only it."""
    assert f"got x_{REDACTED}, failed" == patterns(f"got x_{token}, failed")


def test_patterns_leave_ordinary_errors_alone():
    """An error without a secret stays readable."""
    text = "connect to db:5432 failed after 3 tries (https://example.org/a?b=c): see foo-token expired"

    assert text == patterns(text)


SLOW_SEEDS = (
    *("eyJ", "://", "://:", "://a:", "-token ", "token", "-", "-----BEGIN PRIVATE KEY-----", "bearer ", "ghp_", "AKIA"),
    *("secret" + "." * 32, "pwd\\\\\\\\", '\\"', 'password="', "cookie: '", "authorization\\\\\\", " ", "a"),
)


@pytest.mark.parametrize("number", range(len(PATTERNS)))
@pytest.mark.parametrize("seed", SLOW_SEEDS, ids=range(len(SLOW_SEEDS)))
def test_hostile_text_does_not_make_patterns_slow(number, seed):
    """Time grows with the length, not with its square, for text made of each pattern's own beginning."""
    pattern, replacement = PATTERNS[number]

    def cost(length):
        text = (seed * length)[:length]
        started = time.process_time()
        pattern.sub(replacement, text)
        return time.process_time() - started

    assert min(cost(32_000) for _ in range(2)) <= 8 * min(cost(8_000) for _ in range(2)) + 0.02


def test_error_text_is_one_bounded_line_without_secrets():
    """An exception's message, however long or hostile, becomes a line that can be stored and shown."""
    text = error_text("Boom\n", "password=hunter2hunter2\n\x1b[31m" + "x" * 100_000)

    assert text.startswith(rf"Boom\n: password={REDACTED}\n\x1b[31mxx")
    assert ERROR_BYTES_MAX == len(text.encode())


@given(ANY_TEXT, ANY_TEXT)
def test_error_text_never_fails(name, message):
    """The failure path cannot fail."""
    assert len(error_text(name, message).encode()) <= ERROR_BYTES_MAX


def test_keyed_digest_is_a_truncated_hmac():
    """Equal values can be told under one key; without the key nothing can be guessed from the digest."""
    key = b"k" * 32

    assert hmac.new(key, b"value", hashlib.sha256).hexdigest()[:32] == keyed(key, b"value")
    assert keyed(key, b"value") != keyed(b"j" * 32, b"value")


@given(st.binary(min_size=16, max_size=200), st.binary(max_size=300))
def test_keyed_digest_is_that_of_the_standard_library(key, value):
    """Also for keys longer than a block of the hash, which HMAC shortens."""
    assert hmac.digest(key, value, "sha256").hex()[:32] == keyed(key, value)


def test_keyed_digest_needs_a_real_key():
    """A short key would make it a bare hash."""
    with pytest.raises(ValueError, match="at least 16 bytes"):
        keyed(b"short", b"value")
