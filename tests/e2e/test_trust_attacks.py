# SPDX-License-Identifier: Apache-2.0
"""Attacks on certificates, handshakes and frames that need more than a socket of Python: a table of cases. Each is refused, and
logged once with its cause; afterwards the pool serves, and the master has grown by less than 4 MiB."""
import ctypes
import ctypes.util
import os
import re
import socket
import ssl
import struct
import subprocess

import pytest

import rawwire as w
from conftest import SLOW, wait_until
from secured import ALPN, Certs, Raw, Secured, openssl
from trusted import DENIED, hello

FILETYPE_PEM, UPDATE_REQUESTED = 1, 1
LOW, HIGH = "t189572", "t220372"  # two tenants whose names have the same hash


@pytest.fixture
def pool(bench):
    return Secured(bench)


def client_hello():
    """The first record of a client of TLS 1.3, as bytes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def with_extension(record, kind, content=b""):
    """The record with one more extension in its ClientHello."""
    at = 5 + 4 + 2 + 32
    at += 1 + record[at]
    at += 2 + struct.unpack_from(">H", record, at)[0]
    at += 1 + record[at]
    more = struct.pack(">HH", kind, len(content)) + content
    extensions = record[at + 2:] + more
    body = record[9:at] + struct.pack(">H", len(extensions)) + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return record[:3] + struct.pack(">H", len(message)) + message


class Libssl:
    """A connection by OpenSSL itself, for what Python's module does not offer. False of a call: it failed."""

    def __init__(self, pool, pair):
        self.lib = ctypes.CDLL(ctypes.util.find_library("ssl"))
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.lib.SSL_CTX_new(ctypes.c_void_p(self.lib.TLS_client_method())))
        self.lib.SSL_CTX_use_certificate_chain_file(self.context, pair[0].encode())
        self.lib.SSL_CTX_use_PrivateKey_file(self.context, pair[1].encode(), FILETYPE_PEM)
        self.ssl = ctypes.c_void_p(self.lib.SSL_new(self.context))
        self.sock = w.Raw(pool.master.listen).sock
        # Without a time limit of Python, which would make the descriptor non-blocking; the kernel's limit holds instead.
        self.sock.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 10 * SLOW, 0))
        self.lib.SSL_set_alpn_protos(self.ssl, bytes([len(ALPN)]) + ALPN.encode(), len(ALPN) + 1)
        self.lib.SSL_set_fd(self.ssl, self.sock.fileno())
        assert self.lib.SSL_connect(self.ssl) == 1

    def write(self, data):
        return self.lib.SSL_write(self.ssl, data, len(data)) == len(data)

    def update_keys(self):
        return self.lib.SSL_key_update(self.ssl, UPDATE_REQUESTED) == 1 and self.lib.SSL_do_handshake(self.ssl) == 1

    def close(self):
        self.sock.close()
        self.lib.SSL_free(self.ssl)
        self.lib.SSL_CTX_free(self.context)


def authority(certs):
    """Makes `openssl ca` usable, for what `kvpool cert` cannot do."""
    (certs.dir / "index.txt").touch()
    for name in ("crlnumber", "serial"):
        (certs.dir / name).write_text("01\n")
    (certs.dir / "ca.cnf").write_text(
        f"[ca]\ndefault_ca=x\n[x]\ndatabase={certs.dir}/index.txt\ncrlnumber={certs.dir}/crlnumber\nserial={certs.dir}/serial\n"
        f"new_certs_dir={certs.dir}\ndefault_md=sha256\ndefault_crl_days=30\npolicy=p\n[p]\ncommonName=supplied\n")
    return lambda *args: openssl("ca", "-batch", "-config", f"{certs.dir}/ca.cnf", "-cert", certs.ca, "-keyfile", f"{certs.dir}/ca.key", *args)


# ---- the table: what is sent, to (pool); it asserts the refusal
def not_yet_valid(pool):
    cert, key = pool.certs.odd("odd")
    authority(pool.certs)("-in", cert.replace(".pem", ".csr"), "-extfile", cert.replace(".pem", ".ext"), "-startdate", "20990101000000Z",
                          "-enddate", "20991231000000Z", "-out", cert, "-notext")
    with pool.raw(pair=(cert, key)) as raw:
        assert raw.call(hello()) is None and raw.why


def nul_in_the_name(pool):
    uri = b"kvpool://kvpool/writer/acme\0.evil"
    names = bytes([0x30, len(uri) + 2, 0x86, len(uri)]) + uri
    pair = pool.certs.odd("odd", "DER:" + names.hex(":"))
    with pool.raw(pair=pair) as raw:
        assert raw.call(hello()).err == DENIED


def a_cipher_that_is_not_allowed(pool):
    cert, key = pool.certs.pair("writer", "acme")
    got = subprocess.run(["openssl", "s_client", "-connect", pool.master.listen, "-ciphersuites", "TLS_AES_128_CCM_SHA256", "-alpn", ALPN,
                          "-cert", cert, "-key", key], input=b"", capture_output=True, timeout=20 * SLOW)
    assert got.returncode != 0 and b"alert handshake failure" in got.stderr, got


def early_data(pool):
    frames = hello() + w.frame(w.BUMP, w.pack((2, 1)))
    with w.Raw(pool.master.listen) as raw:
        raw.send(with_extension(client_hello(), 42))
        record = b"\x17\x03\x03" + struct.pack(">H", 16384) + (frames * 200)[:16384]
        for _ in range(8):
            raw.send(record)
        assert raw.is_closed()


def ten_thousand_key_updates(pool):
    client = Libssl(pool, pool.certs.pair("writer", "acme"))
    try:
        assert client.write(hello())
        assert not all(client.update_keys() for _ in range(10000)) or not client.write(hello())
    finally:
        client.close()


def a_second_client_hello(pool):
    """TLS 1.3 has no renegotiation: a client that begins again sends a handshake message that nobody expects."""
    with w.Raw(pool.master.listen) as raw:
        raw.send(client_hello())
        raw.send(b"\x14\x03\x03\x00\x01\x01" + client_hello())
        assert raw.is_closed()


def mount_by_a_client(pool):
    with pool.raw("writer") as raw:
        assert raw.call(hello()).err == w.OK
        assert raw.call(w.frame(w.MOUNT, w.pack((1, "n1"), (2, bytes(16))), request_id=2)).err != w.OK


def the_hash_of_another_tenant(pool):
    with pool.raw("writer", LOW) as first, pool.raw("writer", HIGH) as second:
        assert first.call(hello()).err == w.OK
        answer = second.call(hello())
        assert answer.err == w.INVALID and "have the same hash" in answer.detail, answer.detail


ATTACKS = [
    (not_yet_valid, "what=TLS result=DENIED.*not yet valid"),
    (nul_in_the_name, "what=HELLO result=DENIED.*not one name|what=HELLO result=DENIED.*NUL"),
    (a_cipher_that_is_not_allowed, "what=TLS result=PROTO.*cipher"),
    (early_data, "what=TLS result=PROTO"),
    (ten_thousand_key_updates, "the client asks for too many key updates|too many key updates"),
    (a_second_client_hello, "what=TLS result=PROTO"),
    (mount_by_a_client, "what=MOUNT result=NOTSUP.*only nodes"),
    (the_hash_of_another_tenant, "closing connection of a stranger: .*same hash"),
]


@pytest.mark.parametrize("attack, cause", ATTACKS, ids=[attack.__name__ for attack, _ in ATTACKS])
def test_attack(pool, attack, cause):
    attack(pool)
    wait_until(lambda: re.search(cause, pool.master.log()), what=f"a line with {cause}")
    pool.still_serves()
    lines = [line for line in pool.master.log().splitlines() if re.search(cause, line)]
    assert len(lines) == 1, lines


def test_a_session_is_not_resumed_after_its_certificate_was_revoked(bench):
    """Fails if a server gives sessions that can be resumed, or lets a client in by one whose certificate has been revoked since."""
    certs = Certs(bench)
    gone, crl, ca = certs.pair("reader", "acme"), certs.dir / "ca.crl", authority(certs)
    ca("-gencrl", "-out", str(crl))
    pool = Secured(bench, "--tls-crl", str(crl), certs=certs)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certs.ca)
    context.load_cert_chain(*gone)
    context.set_alpn_protocols([ALPN])

    def connect(session):
        raw = w.Raw(pool.master.listen)
        raw.sock = context.wrap_socket(raw.sock, session=session)
        return raw

    with connect(None) as raw:
        assert raw.call(hello()).err == w.OK
        session = raw.sock.session
        assert session is None or not session.has_ticket
    with connect(session) as raw:
        assert not raw.sock.session_reused
    ca("-revoke", gone[0])
    ca("-gencrl", "-out", f"{crl}.new")
    os.replace(f"{crl}.new", crl)
    wait_until(lambda: "revoked" in (pool.master.log() if try_again(connect, session) else ""), what="the session to be refused")
    pool.audit("what=TLS result=DENIED.*revoked")
    pool.still_serves()


def try_again(connect, session):
    """Whether a client with that session is refused."""
    try:
        with connect(session) as raw:
            assert not raw.sock.session_reused
            return raw.call(hello()) is None
    except (ssl.SSLError, OSError):
        return True


@pytest.mark.parametrize("opcode, name", [(w.RETIRE, "RETIRE"), (w.FENCE, "FENCE")], ids=["retire", "fence"])
def test_orders_of_the_master_are_refused_from_a_client(pool, opcode, name):
    """Fails if a client that has attached to a node, with a certificate, may retire extents or fence others there."""
    before = pool.fences()
    pool.watch(pool.node)
    with pool.raw("writer") as master, Raw(pool.node.listen, pool.certs.ca, pool.certs.pair("writer", "acme")) as raw:
        mine = master.call(hello()).fields
        said = raw.call(w.hello(pool_id=mine[7], incarnation=mine[6]))
        assert said.err == w.OK, said.detail
        answer = raw.call(w.frame(opcode, w.pack((1, 1), (2, 1)), bytes(64), request_id=2))
        assert answer is None or answer.err != w.OK, answer.detail
    pool.node.wait_log("refused a client: it sends an order that only the master may give")
    assert pool.fences() == before
    pool.still_serves()
