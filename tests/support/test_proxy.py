from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.support.proxy import DOWN, UP, Proxy


class Echo:
    """A server that answers each chunk with itself and remembers what it got."""

    def __init__(self):
        self.got = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client:
            try:
                while chunk := client.recv(100):
                    self.got += chunk
                    client.sendall(chunk)
            except OSError:
                return

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo():
    """A server that echoes."""
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo):
    """A way to it."""
    with Proxy(echo.address) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    """A connection through the proxy that works."""
    with socket.create_connection((proxy.host, proxy.port), timeout=10) as client:
        client.sendall(b"hello")
        assert b"hello" == client.recv(100)
        yield client


def is_silent(client):
    """Nothing comes within the time, and the connection stays."""
    client.settimeout(0.1)
    try:
        client.recv(100)
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)
    return False


def test_delay_takes_its_time_both_ways(proxy, client):
    """A chunk and its echo come later by twice the delay."""
    proxy.delay(0.05)

    before = time.monotonic()
    client.sendall(b"x")

    assert b"x" == client.recv(100)
    assert time.monotonic() - before >= 0.1


def test_silence_lets_nothing_through_and_keeps_it(proxy, client, echo):
    """In silence nothing arrives and nothing ends; after healing what was sent arrives."""
    proxy.silence()

    client.sendall(b"x")

    assert is_silent(client)
    assert b"hello" == echo.got
    proxy.heal()
    assert b"x" == client.recv(100)


def test_silence_of_the_answers_lets_requests_through(proxy, client, echo):
    """With one direction silent the server does what nobody hears of."""
    proxy.silence(DOWN)

    client.sendall(b"x")

    assert is_silent(client)
    assert b"hellox" == echo.got


def test_silence_keeps_a_goodbye_back(proxy, client, echo):
    """A FIN does not pass a silent direction: the other side cannot know."""
    proxy.silence(UP)

    client.shutdown(socket.SHUT_WR)

    assert is_silent(client)


def test_reset_is_a_reset(proxy, client):
    """Open connections end with RST; new ones are served."""
    proxy.reset()

    with pytest.raises(ConnectionResetError):
        client.recv(100)
    with socket.create_connection((proxy.host, proxy.port), timeout=10) as other:
        other.sendall(b"x")
        assert b"x" == other.recv(100)


def test_a_lost_answer_is_of_a_request_that_arrived(proxy, client, echo):
    """The request is done, its answer never seen: what a commit of unknown outcome is made of."""
    proxy.lose_answers()

    client.sendall(b"x")

    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert proxy.lost.wait(10)
    assert b"hellox" == echo.got


def test_without_a_server_the_client_is_told(echo):
    """A proxy whose server is gone closes what it accepts."""
    with Proxy(("127.0.0.1", 1)) as proxy, socket.create_connection((proxy.host, proxy.port), timeout=10) as client:
        assert b"" == client.recv(100)
