"""Frames: whole, in pieces, too large, and in the wrong place."""

from __future__ import annotations

import socket

import msgspec
import pytest

from benteng.policy import LIMITS, SECRET_BYTES, SECRETS_MAX, Tier
from benteng.worker import framing, wire
from benteng.worker.framing import Inbox
from benteng.worker.pool import Kind
from benteng.worker.wire import Line


@pytest.fixture
def pair():
    """Two ends of a line; the second one does not block."""
    here, there = socket.socketpair()
    there.setblocking(False)
    yield here, there
    here.close()
    there.close()


def work(handle, payload):
    """An attempt, with its payload."""
    return wire.Work(handle, "greet@1", 7, 1, "op", "digest", 30.0, len(payload)), payload


def said(frames):
    """How attempts ended, each with its part of the tail."""
    inbox = Inbox(Line.CELL_READY)
    for each in frames:
        inbox.accept(each)
        for message, tail in inbox.messages():
            yield from framing.ends(message, tail)


def received(inbox, sock):
    """Everything that has arrived."""
    found = []
    while True:
        try:
            inbox.fill(sock)
        except BlockingIOError:
            return found
        found.extend(inbox.messages())


def test_a_message_arrives_as_it_was_sent(pair):
    """Header and tail come out as they went in, also when the bytes arrive one by one."""
    here, there = pair
    inbox = Inbox(Line.TO_CELL)
    found = []

    for byte in framing.grant_frames([work(1, b"payload")])[0]:
        here.send(bytes([byte]))
        inbox.fill(there)
        found.extend(inbox.messages())

    assert [(wire.Grants((work(1, b"payload")[0],)), b"payload")] == found


def test_the_largest_attempt_fits_alone_and_batches_are_split(pair):
    """One frame never exceeds the cap: only one attempt must fit, the others go into the next (C3)."""
    secrets = tuple(wire.Named("s" * 48, SECRET_BYTES[1]) for _ in range(SECRETS_MAX))
    rest = b"x" * (65_536 + SECRET_BYTES[1] * SECRETS_MAX)
    full = wire.Work(1, "t" * 256, (1 << 53) - 1, 1, "o" * 64, "d" * 64, 30.0, 65_536, secrets)
    works = [(msgspec.structs.replace(full, handle=n), rest) for n in range(8)]

    frames = framing.grant_frames(works)

    assert len(frames) > 1
    assert all(len(each) <= framing.PREFIX.size + wire.FRAME_BYTES_MAX for each in frames)
    inbox = Inbox(Line.TO_CELL)
    for each in frames:
        inbox.accept(each)
        handles = [w.handle for message, _ in inbox.messages() for w in message.works]
        assert handles


def test_a_line_that_says_little_holds_little():
    """The buffer grows to the largest frame that came, not to what might come; what was there before is not lost."""
    inbox = Inbox(Line.TO_CELL)
    (small,), (large,) = (framing.grant_frames([work(1, payload)]) for payload in (b"p", b"p" * 40_000))
    found = []

    inbox.accept(small)
    found += inbox.messages()
    first = len(inbox._buffer)
    for piece in (large[:7], large[7:20_000], large[20_000:]):
        inbox.accept(piece)
        found += inbox.messages()

    assert [1, 40_000] == [len(payload) for _, payload in found]
    assert framing.INBOX_BYTES == first
    assert 40_000 < len(inbox._buffer) < wire.FRAME_BYTES_MAX


def test_each_attempt_has_its_own_secrets(pair):
    """Values stand in the tail, by size; what the sizes do not add up to is no frame."""
    secrets = {"stripe": "geheim ü", "mail": "x" * 8192}
    named = tuple(wire.Named(name, len(value.encode())) for name, value in secrets.items())
    values = b"".join(value.encode() for value in secrets.values())
    one = wire.Work(1, "greet@1", 7, 1, "op", "digest", 30.0, 3, named)

    (frame,) = framing.grant_frames([(one, b"abc" + values), work(2, b"def")])
    inbox = Inbox(Line.TO_CELL)
    inbox.accept(frame)
    ((message, tail),) = inbox.messages()

    found = [(payload, given) for _, payload, given in framing.parts(message.works, tail)]
    assert [(b"abc", secrets), (b"def", {})] == found
    with pytest.raises(wire.ProtocolError):
        list(framing.parts(message.works, tail[:-1]))


def test_how_attempts_ended_is_told_together():
    """One frame for all, each with its part of the tail, and more than one only when the cap wants it."""
    large = wire.Ending(2, wire.How.COMPLETED, result_bytes=65_536, successors=(wire.Next("n@1", 131_072),))
    failed = wire.Ending(3, wire.How.PERMANENT, "x" * 2048, "r" * 128, "f" * 256, "y" * 2048)
    plain = [(wire.Ending(n, wire.How.COMPLETED, result_bytes=4), b"null") for n in range(10, 20)]

    together = framing.ended_frames(plain)
    apart = framing.ended_frames([*plain, (large, b"x" * (65_536 + 131_072)), (failed, b"")])

    assert [10, 20] == [len(list(said(together))), len(list(said([*together, *together])))]
    assert [*plain, (large, b"x" * (65_536 + 131_072)), (failed, b"")] == list(said(apart))
    assert 1 == len(together) < len(apart)
    assert all(len(each) <= framing.PREFIX.size + wire.FRAME_BYTES_MAX for each in apart)


@pytest.mark.parametrize("tail", [b"", b"nul", b"nulll"])
def test_a_tail_that_the_ends_do_not_add_up_to_is_no_frame(tail):
    """Nothing of such a frame counts."""
    with pytest.raises(wire.ProtocolError):
        framing.ends(wire.Ended((wire.Ending(1, wire.How.COMPLETED, result_bytes=4),)), tail)


def test_a_reader_that_stops_has_had_what_it_took(pair):
    """A frame that was handed out does not come again."""
    here, there = pair
    here.send(framing.frame(wire.Stop(1)) + framing.frame(wire.Stop(2)))
    inbox = Inbox(Line.TO_CELL)
    inbox.fill(there)

    first = next(iter(inbox.messages()))

    assert wire.Stop(1) == first[0]
    assert [(wire.Stop(2), b"")] == list(inbox.messages())


@pytest.mark.parametrize("line", list(Line))
def test_only_what_is_permitted_decodes(line):
    """Each message is refused on every line whose row in PERMITTED does not have it."""
    samples = [
        wire.Grants(()),
        wire.Stop(1),
        wire.Hello(()),
        wire.Started((1,)),
        wire.Ended((wire.Ending(1, wire.How.COMPLETED),)),
        wire.Progress(1, "x"),
        wire.Log(1, "x"),
        wire.Spawn(1, Kind.WIDE, 1, LIMITS[Tier.LOW]),
        wire.Guard(()),
        wire.End(1),
        wire.Ready(),
        wire.Refuse("r", "t"),
        wire.Spawned(1, 2),
        wire.Exited(1, 0, guarded=False),
        wire.Examine(),
        wire.Hatch(("REGION",)),
        wire.Look(1, layers=True),
        wire.Signal(9),
        wire.Measure(((1, 2, 3),)),
        wire.Drop(1, 2),
        wire.Cull(1.0),
        wire.Holds(("seccomp",)),
        wire.Hatched(2),
        wire.Seen(1, ("seccomp",), 0, 1),
        wire.Full((1,)),
        wire.Gone(),
    ]
    for message in samples:
        inbox = Inbox(line)
        inbox.accept(framing.frame(message))
        if type(message) in wire.PERMITTED[line]:
            assert message == next(inbox.messages())[0]
        else:
            with pytest.raises(wire.ProtocolError):
                list(inbox.messages())


def test_every_message_is_permitted_somewhere():
    """No message exists that nobody may say."""
    known = {message for messages in wire.PERMITTED.values() for message in messages}

    assert set(wire.Message.__subclasses__()) - known == {wire.Work, wire.Next, wire.Named, wire.Denied, wire.Ending}


def test_a_line_changes_with_its_state(pair):
    """The table is asked anew for each message: a greeting opens the line for the rest of the same bytes."""
    here, there = pair
    here.send(framing.frame(wire.Hello(())) + framing.frame(wire.Started((1,))))
    inbox = Inbox(Line.CELL_BORN)
    inbox.fill(there)
    found = []

    for message, _ in inbox.messages():
        found.append(message)
        inbox.line = Line.CELL_READY

    assert [wire.Hello(()), wire.Started((1,))] == found


def test_an_outbox_sends_what_fits_and_keeps_the_rest(pair):
    """Nothing blocks; the bytes arrive whole and in order."""
    here, there = pair
    here.setblocking(False)
    outbox = framing.Outbox()
    frames = [framing.frame(wire.Log(n, "x" * 8000)) for n in range(200)]
    for each in frames:
        outbox.put(each)
    inbox, found = Inbox(Line.CELL_READY), []

    while outbox:
        outbox.flush(here)
        found.extend(received(inbox, there))

    assert list(range(200)) == [message.handle for message, _ in found]
    assert 0 == outbox.bytes
