# SPDX-License-Identifier: Apache-2.0
"""How each library of deploy/release.lock is built: a function a library, in an order in which each finds those that it needs.

Every library ends as one static archive in the prefix, with its headers and a description for pkg-config that is written here: it
names all that a static link needs, which the libraries' own descriptions do not."""
import re
import shutil
from pathlib import Path

from releasing.toolchain import CURL, Toolchain


SMALL = "-fPIC -Os -fno-asynchronous-unwind-tables"


class Builder:
    """Builds one library in `source` with the tools of `tools`."""

    def __init__(self, tools: Toolchain, source: Path, patches: "Path | None"):
        self.tools, self.target, self.source, self.patches = tools, tools.target, source, patches

    def run(self, *words: "str | Path") -> None:
        self.tools.run(*words, folder=self.source)

    def patch(self, names: str) -> None:
        """Applies the patches of the distribution whose names match the expression `names`, in their order."""
        folder = self.patches / "debian/patches"
        for name in (folder / "series").read_text().split():
            if re.search(names, name) and (folder / name).is_file():
                self.run("patch", "--no-backup-if-mismatch", "-p1", "-i", folder / name)

    def compile(self, archive: str, files: "list[str]", *flags: str) -> None:
        """Compiles each file on its own: one call with two source files would yield one object."""
        for file in files:
            self.run("kvp-cc", "-fPIC", "-O3", *flags, "-c", file, "-o", f"{file}.o")
        self.run("kvp-ar", "rcs", self.tools.prefix / "lib" / archive, *(f"{file}.o" for file in files))

    def copy(self, folder: str, *patterns: str) -> None:
        """Copies what matches the patterns into that folder of the prefix."""
        (self.tools.prefix / folder).mkdir(parents=True, exist_ok=True)
        for path in (path for pattern in patterns for path in self.source.glob(pattern)):
            shutil.copy(path, self.tools.prefix / folder)

    def configure(self, *options: str) -> None:
        """autoconf's configure script, as for a foreign processor even where it is the machine's own: no test program is run."""
        self.run("./configure", f"--host={self.target.triple}", "--build=x86_64-build-linux-gnu", f"--prefix={self.tools.prefix}",
                 "--disable-shared", "--enable-static", "CC=kvp-cc", "AR=kvp-ar", "RANLIB=kvp-ranlib", "CFLAGS=-fPIC -O2", *options)

    def make(self, *words: str) -> None:
        # Patches make the sources of the configure script newer than the script, which is left as it is.
        self.run("make", f"-j{self.tools.jobs}", "ACLOCAL=:", "AUTOCONF=:", "AUTOMAKE=:", "AUTOHEADER=:", *words)

    def cmake(self, on: str = "", off: str = "") -> None:
        """on, off: the library's own options."""
        bin_ = self.tools.bin
        settings = {
            "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": self.target.machine, "CMAKE_C_COMPILER": "kvp-cc",
            "CMAKE_CXX_COMPILER": "kvp-c++", "CMAKE_AR": bin_ / "kvp-ar", "CMAKE_RANLIB": bin_ / "kvp-ranlib", "CMAKE_BUILD_TYPE": "None",
            "CMAKE_C_FLAGS": "-O2", "CMAKE_CXX_FLAGS": "-O2", "CMAKE_INSTALL_PREFIX": self.tools.prefix, "CMAKE_INSTALL_LIBDIR": "lib",
            "BUILD_SHARED_LIBS": "OFF", "CMAKE_POSITION_INDEPENDENT_CODE": "ON", "BUILD_TESTING": "OFF",
            "CMAKE_FIND_ROOT_PATH": self.tools.prefix, "CMAKE_FIND_ROOT_PATH_MODE_PROGRAM": "NEVER",
            **{f"CMAKE_FIND_ROOT_PATH_MODE_{kind}": "ONLY" for kind in ("LIBRARY", "INCLUDE", "PACKAGE")},
            **dict.fromkeys(on.split(), "ON"), **dict.fromkeys(off.split(), "OFF")}
        self.run("cmake", "-S", ".", "-B", "_build", "-G", "Ninja", *(f"-D{name}={value}" for name, value in settings.items()))
        self.run("cmake", "--build", "_build", f"-j{self.tools.jobs}")
        self.run("cmake", "--install", "_build")


def describe(prefix: Path, name: str, version: str, flags: str) -> None:
    """Writes what pkg-config says of a library, in place of the library's own description."""
    (prefix / "lib/pkgconfig" / f"{name}.pc").write_text(
        f"Name: {name}\nDescription: {name}\nVersion: {version}\nCflags: -I{prefix}/include\nLibs: -L{prefix}/lib {flags}\n")


def xxhash(b: Builder) -> None:
    files = ["xxhash", "xxh_x86dispatch"] if b.target.arch == "x86-64" else ["xxhash"]
    # The library's setting for gcc. Without it clang's code for sums in several steps has 0.90 of the speed of gcc's, with it 0.94.
    b.compile("libxxhash.a", [f"{file}.c" for file in files], "-DXXH3_STREAM_USE_STACK=1")
    b.copy("include", "xxh3.h", *(f"{file}.h" for file in files))


def protobuf_c(b: Builder) -> None:
    b.compile("libprotobuf-c.a", ["protobuf-c/protobuf-c.c"], "-I.")
    b.copy("include/protobuf-c", "protobuf-c/protobuf-c.h")


def libuv(b: Builder) -> None:
    b.patch("cve")
    b.cmake(off="LIBUV_BUILD_TESTS LIBUV_BUILD_BENCH")
    lib = b.tools.prefix / "lib"
    for shared in lib.glob("libuv.so*"):  # there is no option against it
        shared.unlink()
    (lib / "libuv_a.a").rename(lib / "libuv.a")


def json_c(b: Builder) -> None:
    b.cmake(on="DISABLE_EXTRA_LIBS ENABLE_THREADING DISABLE_WERROR", off="BUILD_APPS")


def libmicrohttpd(b: Builder) -> None:
    b.patch("DoS")
    b.configure("--disable-https", "--disable-curl", "--disable-doc", "--disable-examples")
    b.make("-C", "src/microhttpd", "install")
    b.make("-C", "src/include", "install")


def openssl(b: Builder) -> None:
    """What libcurl and kvpool's own connections need to speak TLS 1.2 and 1.3: no other ciphers and hashes, and nothing that is loaded
    at run time. It is built to be small: what costs time in TLS is assembler."""
    without = ("shared module dso engine legacy tests autoload-config async comp ct cms cmp ts ocsp srp srtp psk dtls ssl3 tls1 tls1_1 "
               "nextprotoneg sctp gost idea seed camellia aria bf cast des rc2 rc4 md4 mdc2 rmd160 whirlpool sm2 sm3 sm4 blake2 siphash siv "
               "ocb scrypt dsa ec2m rfc3779 ui-console filenames multiblock")
    b.run("perl", "Configure", b.target.openssl, "--prefix=/usr", "--libdir=lib", "--openssldir=/etc/ssl",
          *(f"no-{word}" for word in without.split()), "CC=kvp-cc", "AR=kvp-ar", "RANLIB=kvp-ranlib",
          f"CFLAGS={SMALL}")
    b.make("build_generated")
    b.make("libcrypto.a", "libssl.a")
    b.copy("lib", "libcrypto.a", "libssl.a")
    b.copy("include/openssl", "include/openssl/*.h")


def curl(b: Builder) -> None:
    """HTTP and HTTPS alone. Certificates of authorities are looked for where OpenSSL looks: in /etc/ssl, or in $SSL_CERT_FILE.

    With OpenSSL it becomes a shared library of our own: as a static one it would be in four files of a release, with 1 MB each. Only
    libcurl's functions can be seen, and with a version of our own: no other libcurl in the process takes their place."""
    b.patch("CVE|^0001-http|same-credentials")
    off = ("symbol-hiding dependency-tracking ftp file ldap ldaps rtsp dict telnet tftp pop3 imap smb smtp gopher mqtt manual ntlm ntlm-wb tls-srp "
           "unix-sockets alt-svc hsts doh netrc kerberos-auth negotiate-auth aws libcurl-option")
    without = "zlib brotli zstd libidn2 libpsl nghttp2 nghttp3 ngtcp2 librtmp libssh2 libssh libgsasl gssapi ca-bundle ca-path"
    b.configure(f"--with-openssl={b.tools.prefix}", "--with-ca-fallback", *(f"--disable-{word}" for word in off.split()),
                *(f"--without-{word}" for word in without.split()), f"CPPFLAGS=-I{b.tools.prefix}/include",
                f"LDFLAGS=-L{b.tools.prefix}/lib", "LIBS=-lpthread -ldl", f"CFLAGS={SMALL}")
    b.make("-C", "lib")
    b.make("-C", "include", "install")
    (b.source / "curl.map").write_text("KVPOOL_CURL { global: curl_*; local: *; };\n")
    lib = b.tools.prefix / "lib"
    b.run("kvp-cc", "-shared", "-s", f"-Wl,-soname,{CURL}", "-Wl,--version-script=curl.map", "-Wl,-z,nodelete", "-Wl,--gc-sections",
          "-Wl,--whole-archive", "lib/.libs/libcurl.a", "-Wl,--no-whole-archive", lib / "libssl.a", lib / "libcrypto.a", "-lpthread", "-ldl",
          "-o", lib / CURL)
    (lib / "libkvpool-curl.so").unlink(missing_ok=True)
    (lib / "libkvpool-curl.so").symlink_to(CURL)


def pcre2(b: Builder) -> None:
    b.cmake(on="PCRE2_SUPPORT_JIT PCRE2_STATIC_PIC",
            off="PCRE2_BUILD_TESTS PCRE2_BUILD_PCRE2GREP PCRE2_SUPPORT_LIBREADLINE PCRE2_SUPPORT_LIBEDIT")


def liburing(b: Builder) -> None:
    b.run("./configure", "--cc=kvp-cc", "--cxx=false")
    b.make("-C", "src", "liburing.a", "ENABLE_SHARED=0", "CFLAGS=-O3 -fPIC -fno-stack-protector", "AR=kvp-ar", "RANLIB=kvp-ranlib")
    b.copy("lib", "src/liburing.a")
    b.copy("include", "src/include/liburing.h")
    b.copy("include/liburing", "src/include/liburing/*.h")


def zeromq(b: Builder) -> None:
    # Otherwise found out by running programs; all Linux systems have these.
    have = ("SOCK_CLOEXEC O_CLOEXEC EVENTFD_CLOEXEC SO_BINDTODEVICE SO_KEEPALIVE SO_PRIORITY TCP_KEEPCNT TCP_KEEPIDLE TCP_KEEPINTVL "
            "PTHREAD_SETNAME_2 PTHREAD_SET_AFFINITY GETRANDOM")
    b.cmake(on=" ".join(f"ZMQ_HAVE_{word}" for word in have.split()),
            off="BUILD_SHARED BUILD_TESTS WITH_PERF_TOOL WITH_DOCS WITH_LIBSODIUM WITH_LIBBSD WITH_TLS ENABLE_CURVE ENABLE_WS "
                "ENABLE_CPACK ENABLE_PRECOMPILED")


def msgpack_c(b: Builder) -> None:
    b.cmake(off="MSGPACK_BUILD_TESTS MSGPACK_BUILD_EXAMPLES MSGPACK_ENABLE_SHARED")


def jemalloc(b: Builder) -> None:
    """The sizes that its configure script would find by running programs are given: all systems of a processor have the same."""
    b.configure("--disable-cxx", "--disable-doc", f"--with-lg-page={b.target.lg_page}", "--with-lg-hugepage=21", "--with-lg-vaddr=48")
    b.make("lib/libjemalloc_pic.a")
    b.copy("include/jemalloc", "include/jemalloc/jemalloc.h")
    shutil.copy(b.source / "lib/libjemalloc_pic.a", b.tools.prefix / "lib/libjemalloc.a")


# The function, pkg-config's name of the library, and what a program that uses it is linked with.
LIBRARIES = {
    "xxhash": (xxhash, "libxxhash", "-lxxhash"),
    "protobuf-c": (protobuf_c, "libprotobuf-c", "-lprotobuf-c"),
    "libuv": (libuv, "libuv", "-luv -lpthread -ldl"),
    "json-c": (json_c, "json-c", "-ljson-c"),
    "libmicrohttpd": (libmicrohttpd, "libmicrohttpd", "-lmicrohttpd -lpthread"),
    "openssl": (openssl, "openssl", "-lssl -lcrypto -lpthread -ldl"),
    "curl": (curl, "libcurl", "-lkvpool-curl"),
    "pcre2": (pcre2, "libpcre2-8", "-lpcre2-8"),
    "liburing": (liburing, "liburing", "-luring"),
    "zeromq": (zeromq, "libzmq", "-lzmq -lc++ -lpthread"),
    "msgpack-c": (msgpack_c, "msgpack", "-lmsgpackc"),
    "jemalloc": (jemalloc, "jemalloc", "-ljemalloc -lpthread -ldl"),
}
