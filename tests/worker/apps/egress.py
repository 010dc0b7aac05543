"""Job types that use the network as people do, in a pool for each tier. Where the servers are: in a file beside."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import smtplib
import socket
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from benteng.app import Benteng
from benteng.contract import Contract, Slug, Target
from benteng.policy import Effect, Tier

app = Benteng()
HERE = Path(__file__).parent
PLACES: dict[str, int] = json.loads((HERE / "places.json").read_text()) if (HERE / "places.json").exists() else {}
QUICK: dict[str, Any] = {
    "lease_seconds": 4.0,
    "backoff_seconds_min": 0.05,
    "backoff_seconds_base": 0.05,
    "backoff_seconds_max": 0.2,
}


class Try(Contract):
    name: Slug
    host: Target
    what: Slug


def _url(kind: str) -> str:
    return f"{kind}://localhost:{PLACES[kind]}/"


def _trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=HERE / "ca.pem")


def _urllib() -> str:
    return urllib.request.urlopen(_url("http"), timeout=5).read().decode()  # noqa: S310 - a server of the test


def _urllib_tls() -> str:
    return urllib.request.urlopen(_url("https"), context=_trusting()).read().decode()  # noqa: S310 - as above


def _http_client() -> str:
    connection = http.client.HTTPSConnection("localhost", PLACES["https"], context=_trusting())
    connection.request("GET", "/")
    return connection.getresponse().read().decode()


def _requests() -> str:
    import requests

    plain = requests.get(_url("http"), timeout=5).text
    return plain if plain == requests.get(_url("https"), verify=str(HERE / "ca.pem"), timeout=5).text else ""


def _httpx() -> str:
    import httpx

    async def several() -> set[str]:
        async with httpx.AsyncClient(verify=_trusting()) as client:
            answers = await asyncio.gather(*(client.get(_url("https")) for _ in range(8)))
            return {answer.text for answer in answers}

    plain = httpx.get(_url("http")).text
    return plain if {plain} == asyncio.run(several()) else ""


def _asyncio() -> str:
    async def talk() -> str:
        reader, writer = await asyncio.open_connection("localhost", PLACES["https"], ssl=_trusting())
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        return text.rpartition("\r\n")[2]

    return asyncio.run(talk())


def _psycopg() -> str:
    import psycopg

    password = (HERE / "password").read_text()
    where = f"host=localhost port={PLACES['postgres']} dbname=postgres user=postgres password={password}"

    async def asked() -> Any:
        async with await psycopg.AsyncConnection.connect(where) as connection:
            return await (await connection.execute("select 'hello'")).fetchone()

    with psycopg.connect(where) as connection:
        row = connection.execute("select 'hello'").fetchone()
    return row[0] if row is not None and row == asyncio.run(asked()) else ""


def _redis() -> str:
    import redis

    client = redis.Redis("localhost", PLACES["redis"], socket_timeout=5, socket_keepalive=True, protocol=2)
    return client.get("greeting").decode()  # type: ignore[union-attr]


def _smtp() -> str:
    with smtplib.SMTP("localhost", PLACES["smtp"], timeout=5) as server:
        server.sendmail("a@example.org", ["b@example.org"], "hello")
    return "hello"


def _options() -> str:
    """What is set before the connect is still set after it; a second connect finds a connected socket."""
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4321)
        sock.connect(("localhost", PLACES["http"]))
        kept = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        again = sock.connect_ex(("localhost", PLACES["http"]))
    return "hello" if (kept, again) == (4321, 106) else f"{kept} {again}"


def _ipv6() -> str:
    with socket.socket(socket.AF_INET6) as sock:
        sock.connect(socket.getaddrinfo("localhost", PLACES["http"], socket.AF_INET6)[0][4])
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return sock.makefile().read().rpartition("\n")[2]


CLIENTS = {
    "urllib": _urllib,
    "urllib-tls": _urllib_tls,
    "http-client": _http_client,
    "requests": _requests,
    "httpx": _httpx,
    "asyncio": _asyncio,
    "psycopg": _psycopg,
    "redis": _redis,
    "smtplib": _smtp,
    "options": _options,
    "ipv6": _ipv6,
}


def _unlisted() -> None:
    socket.create_connection(("localhost", PLACES["unlisted"]), 5).sendall(b"out")


def _address() -> None:
    socket.create_connection(("127.0.0.1", PLACES["unlisted"]), 5).sendall(b"out")


def _name() -> None:
    socket.create_connection(("evil.example.org", 443), 5)


def _many() -> None:
    for _ in range(20):
        socket.create_connection(("localhost", PLACES["quiet"]), 5).close()


def _hold() -> None:
    """Hold a connection until killed, deaf to what asks to end."""
    with socket.create_connection(("localhost", PLACES["quiet"]), 5) as sock:
        sock.sendall(b"held")
        os.write(os.open(os.environ["EFFECTS"], os.O_WRONLY), f"held pid={os.getpid()}\n".encode())
        while True:
            try:
                time.sleep(60)
            except BaseException:  # noqa: BLE001, S112 - deaf on purpose
                continue


def _interrupted() -> str:
    """The first time hold on; after that answer."""
    marker = os.open(os.environ["EFFECTS"], os.O_WRONLY)
    os.write(marker, f"begun pid={os.getpid()}\n".encode())
    os.close(os.open(Path(os.environ["EFFECTS"]).with_name("go"), os.O_RDONLY))  # until the test lets it go on
    return _urllib()


def _curl(url: str) -> str:
    """Return what curl says, or how it failed and its status."""
    words = ["/usr/bin/curl", "-sS", "--max-time", "10", "--cacert", str(HERE / "ca.pem"), url]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else f"{done.returncode}: {done.stderr}"


TRICKS = {
    "curl": lambda: _curl(_url("https")),
    "curl-unlisted": lambda: _curl(f"http://localhost:{PLACES['unlisted']}/"),
    "curl-name": lambda: _curl("https://evil.example.org/"),
    "curl-address": lambda: _curl(f"http://127.0.0.1:{PLACES['unlisted']}/"),
    "unlisted": _unlisted,
    "address": _address,
    "name": _name,
    "many": _many,
    "hold": _hold,
    "interrupted": _interrupted,
}


def _do(what: str) -> Any:
    return (CLIENTS | TRICKS)[what]()


@app.job("low@1", pool="low", **QUICK, attempts_max=1, crashes_max=1)
def low(name: str, host: str, what: str) -> Any:
    """Use the network at LOW."""
    return _do(what)


@app.job(
    "medium@1",
    pool="medium",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=None,
    attempts_max=1,
    crashes_max=1,
    **QUICK,
)
def medium(step: Try) -> Any:
    """Use the network at MEDIUM."""
    return _do(step.what)


@app.job(
    "high@1",
    pool="high",
    tier=Tier.HIGH,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=("host",),
    attempts_max=1,
    crashes_max=1,
)
def high(step: Try) -> Any:
    """Use the network at HIGH."""
    return _do(step.what)
