"""Servers on loopback, as witnesses: what cells talk to, and who saw whom."""

from __future__ import annotations

import contextlib
import http.server
import secrets
import socket
import socketserver
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Page(http.server.BaseHTTPRequestHandler):
    """An HTTP server with one page."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *arguments):
        """Say nothing."""


class Mail(socketserver.StreamRequestHandler):
    """An SMTP server that takes everything."""

    def handle(self):
        self.wfile.write(b"220 ready\r\n")
        data = False
        for raw in self.rfile:
            line = raw.strip().upper()
            if data and line != b".":
                continue
            if line == b"QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            data = line == b"DATA"
            self.wfile.write(b"354 go on\r\n" if data else b"250 ok\r\n")


class Cache(socketserver.StreamRequestHandler):
    """A server that speaks enough of RESP."""

    def handle(self):
        while head := self.rfile.readline():
            words = [self._word() for _ in range(int(head[1:]))]
            self.wfile.write(b"$5\r\nhello\r\n" if words[0].upper() == b"GET" else b"+OK\r\n")

    def _word(self):
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:-2]


class Quiet(socketserver.BaseRequestHandler):
    """A server that says nothing and notes when somebody came and when he was gone."""

    server: Threads

    def handle(self):
        server = self.server
        server.came.release()
        try:
            while self.request.recv(1024):
                continue
        except OSError:
            pass
        server.left.release()


class Threads(socketserver.ThreadingTCPServer):
    """One thread for each connection, and counts of them."""

    daemon_threads = True
    request_queue_size = 128
    tls: ssl.SSLContext | None = None

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.connections, self._more = 0, threading.Condition()
        self.came, self.left = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def port(self):
        return self.server_address[1]

    def get_request(self):
        sock, peer = super().get_request()
        with self._more:
            self.connections += 1
            self._more.notify_all()
        return (self.tls.wrap_socket(sock, server_side=True), peer) if self.tls else (sock, peer)

    def reached(self, count, seconds_max=10):
        """Return how many came, once so many did: a client may be done before its connection is accepted."""
        with self._more:
            self._more.wait_for(lambda: self.connections >= count, seconds_max)
        return self.connections

    def handle_error(self, request, client_address):
        """Say nothing: a client that was killed is no error here."""


class Town:
    """All servers, and the authority that `localhost` is certified by."""

    def __init__(self, root, postgres):
        self.ca = root / "ca.pem"
        self.postgres = postgres
        self.servers = {
            "http": Threads(Page),
            "https": Threads(Page),
            "redis": Threads(Cache),
            "smtp": Threads(Mail),
            "quiet": Threads(Quiet),
            "unlisted": Threads(Quiet),
        }
        self.servers["https"].tls = self._certificate(root)

    def __getitem__(self, name):
        return self.servers[name]

    def ports(self):
        return {name: server.port for name, server in self.servers.items()}

    def rules(self):
        """Return what a pool needs to reach all that are listed."""
        return [f"localhost:{port} loopback" for name, port in self.ports().items() if name != "unlisted"]

    def close(self):
        for server in self.servers.values():
            server.shutdown()
            server.server_close()

    def _certificate(self, root):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
        now = datetime.now(UTC)
        usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    key_cert_sign=True,
                    crl_sign=True,
                    encipher_only=False,
                    decipher_only=False,
                    **usage,
                ),
                critical=True,
            )
            .sign(key, hashes.SHA256())
        )
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        private = root / "server.pem"
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, private)
        return context


FREE, LISTENED = range(10_000, 18_000), range(18_000, 30_000)
"""Ports that the kernel gives to nobody who asks for any: who is late for another server comes to none of these."""


def free_port():
    """Return a port where nobody listens, and nobody will."""
    while True:
        port = secrets.choice(FREE)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def listener(kind=socket.SOCK_STREAM, host="127.0.0.1"):
    """Return a socket on a port of its own that no other test has had a moment ago."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    assert LISTENED.stop <= lowest, "this machine gives such ports away"
    while True:
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
        try:
            made.bind((host, secrets.choice(LISTENED)))
            if kind is socket.SOCK_STREAM:
                made.listen(1024)
        except OSError:
            made.close()
        else:
            return made
