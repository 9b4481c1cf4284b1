# SPDX-License-Identifier: Apache-2.0
"""How each library of deploy/release.lock is built: a function a library, in an order in which each finds those that it needs.

Every library ends as one static archive in the prefix, with its headers and a description for pkg-config that is written here: it
names all that a static link needs, which the libraries' own descriptions do not."""
import re
import shutil
import subprocess
from pathlib import Path

from releasing.toolchain import Toolchain


class Builder:
    """Builds one library in `source` with the tools of `tools`."""

    def __init__(self, tools: Toolchain, source: Path, patches: "Path | None"):
        self.tools, self.target, self.source, self.patches = tools, tools.target, source, patches

    def run(self, *words: "str | Path") -> None:
        self.tools.run(*words, folder=self.source)

    def patch(self, names: str) -> None:
        """Applies the patches of the distribution whose names match the expression `names`, in their order."""
        assert self.patches is not None
        series = (self.patches / "debian/patches/series").read_text().split("\n")
        chosen = [name for name in series if re.search(names, name) and not name.startswith("#")]
        assert chosen, f"no patch matches {names}"
        for name in chosen:
            self.run("patch", "--no-backup-if-mismatch", "-p1", "-i", self.patches / "debian/patches" / name.strip())

    def compile(self, archive: str, files: "list[str]", *flags: str) -> None:
        """Compiles each file on its own: one call with two source files would yield one object."""
        objects = [file.replace("/", "_") + ".o" for file in files]
        for file, out in zip(files, objects):
            self.run("kvp-cc", "-fPIC", "-O3", *flags, "-c", file, "-o", out)
        self.run("kvp-ar", "rcs", self.tools.prefix / "lib" / archive, *objects)

    def headers(self, *files: str, folder: str = "") -> None:
        into = self.tools.prefix / "include" / folder
        into.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(self.source / file, into)

    def configure(self, *options: str) -> None:
        """autoconf's configure script, as for a foreign processor even where it is the machine's own: no test program is run."""
        self.run("./configure", f"--host={self.target.triple}", "--build=x86_64-build-linux-gnu", f"--prefix={self.tools.prefix}",
                 "--disable-shared", "--enable-static", "CC=kvp-cc", "CXX=kvp-c++", "AR=kvp-ar", "RANLIB=kvp-ranlib", "NM=nm",
                 "CFLAGS=-fPIC -O2", *options)

    def make(self, *words: str) -> None:
        # Patches make the sources of the configure script newer than the script, which is left as it is.
        self.run("make", f"-j{self.tools.jobs}", "ACLOCAL=:", "AUTOCONF=:", "AUTOMAKE=:", "AUTOHEADER=:", *words)

    def cmake(self, *options: str) -> None:
        settings = {
            "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": self.target.machine, "CMAKE_C_COMPILER": "kvp-cc",
            "CMAKE_CXX_COMPILER": "kvp-c++", "CMAKE_AR": self.tools.bin / "kvp-ar", "CMAKE_RANLIB": self.tools.bin / "kvp-ranlib",
            "CMAKE_BUILD_TYPE": "None", "CMAKE_C_FLAGS": "-O2", "CMAKE_CXX_FLAGS": "-O2", "CMAKE_INSTALL_PREFIX": self.tools.prefix,
            "CMAKE_INSTALL_LIBDIR": "lib", "BUILD_SHARED_LIBS": "OFF", "CMAKE_POSITION_INDEPENDENT_CODE": "ON", "BUILD_TESTING": "OFF",
            "CMAKE_FIND_ROOT_PATH": self.tools.prefix, "CMAKE_FIND_ROOT_PATH_MODE_PROGRAM": "NEVER",
            "CMAKE_FIND_ROOT_PATH_MODE_LIBRARY": "ONLY", "CMAKE_FIND_ROOT_PATH_MODE_INCLUDE": "ONLY",
            "CMAKE_FIND_ROOT_PATH_MODE_PACKAGE": "ONLY",
        }
        self.run("cmake", "-S", ".", "-B", "_build", "-G", "Ninja", *(f"-D{k}={v}" for k, v in settings.items()), *options)
        self.run("cmake", "--build", "_build", f"-j{self.tools.jobs}")
        self.run("cmake", "--install", "_build")


def describe(prefix: Path, name: str, version: str, libraries: str) -> None:
    """Writes what pkg-config says of a library, in place of the library's own description."""
    (prefix / "lib/pkgconfig" / f"{name}.pc").write_text(
        f"Name: {name}\nDescription: {name}\nVersion: {version}\nCflags: -I{prefix}/include\nLibs: -L{prefix}/lib {libraries}\n")


def xxhash(b: Builder) -> None:
    dispatch = ["xxh_x86dispatch.c"] if b.target.arch == "x86-64" else []
    b.compile("libxxhash.a", ["xxhash.c", *dispatch])
    b.headers("xxhash.h", "xxh3.h", *(["xxh_x86dispatch.h"] if dispatch else []))


def protobuf_c(b: Builder) -> None:
    b.compile("libprotobuf-c.a", ["protobuf-c/protobuf-c.c"], "-I.")
    b.headers("protobuf-c/protobuf-c.h", folder="protobuf-c")


def libuv(b: Builder) -> None:
    b.patch("cve")
    b.cmake("-DLIBUV_BUILD_TESTS=OFF", "-DLIBUV_BUILD_BENCH=OFF")
    lib = b.tools.prefix / "lib"
    (lib / "libuv_a.a").rename(lib / "libuv.a")


def json_c(b: Builder) -> None:
    b.cmake("-DDISABLE_EXTRA_LIBS=ON", "-DBUILD_APPS=OFF", "-DENABLE_THREADING=ON", "-DDISABLE_WERROR=ON")


def libmicrohttpd(b: Builder) -> None:
    b.patch("DoS")
    b.configure("--disable-https", "--disable-curl", "--disable-doc", "--disable-examples", "--without-gnutls", "--enable-asserts=no")
    b.make("-C", "src/microhttpd", "install")
    b.make("-C", "src/include", "install")


def openssl(b: Builder) -> None:
    """Only what libcurl needs to speak TLS: no ciphers and hashes that TLS 1.2 and 1.3 do not use, nothing that is loaded."""
    without = ("shared module dso engine legacy tests autoload-config async comp ct cms cmp ts ocsp srp srtp psk dtls ssl3 tls1 tls1_1 "
               "nextprotoneg sctp gost idea seed camellia aria bf cast des rc2 rc4 md4 mdc2 rmd160 whirlpool sm2 sm3 sm4 blake2 siphash siv "
               "ocb scrypt dsa ec2m rfc3779 ui-console")
    b.run("perl", "Configure", b.target.openssl, "--prefix=/usr", "--libdir=lib", "--openssldir=/etc/ssl",
          *(f"no-{word}" for word in without.split()), "CC=kvp-cc", "AR=kvp-ar", "RANLIB=kvp-ranlib", "-fPIC")
    b.make("build_generated")
    b.make("libcrypto.a", "libssl.a")
    for library in ("libcrypto.a", "libssl.a"):
        shutil.copy(b.source / library, b.tools.prefix / "lib")
    b.headers(*(str(path.relative_to(b.source)) for path in sorted((b.source / "include/openssl").glob("*.h"))), folder="openssl")


def curl(b: Builder) -> None:
    """HTTP and HTTPS alone. Certificates of authorities are looked for where OpenSSL looks: /etc/ssl, or $SSL_CERT_FILE."""
    b.patch("CVE|^0001-http|same-credentials")
    without = ("ftp file ldap ldaps rtsp dict telnet tftp pop3 imap smb smtp gopher mqtt manual ntlm ntlm-wb tls-srp unix-sockets alt-svc "
               "hsts doh netrc kerberos-auth negotiate-auth aws libcurl-option")
    absent = "zlib brotli zstd libidn2 libpsl nghttp2 nghttp3 ngtcp2 librtmp libssh2 libssh libgsasl gssapi ca-bundle ca-path"
    b.configure(f"--with-openssl={b.tools.prefix}", "--with-ca-fallback", "--enable-threaded-resolver", "--disable-dependency-tracking",
                *(f"--disable-{word}" for word in without.split()), *(f"--without-{word}" for word in absent.split()),
                f"CPPFLAGS=-I{b.tools.prefix}/include", f"LDFLAGS=-L{b.tools.prefix}/lib", "LIBS=-lpthread -ldl")
    b.make("-C", "lib", "install")
    b.make("-C", "include", "install")


def pcre2(b: Builder) -> None:
    b.cmake("-DPCRE2_BUILD_TESTS=OFF", "-DPCRE2_BUILD_PCRE2GREP=OFF", "-DPCRE2_SUPPORT_JIT=ON", "-DPCRE2_SUPPORT_LIBREADLINE=OFF",
            "-DPCRE2_SUPPORT_LIBEDIT=OFF", "-DPCRE2_STATIC_PIC=ON")


def liburing(b: Builder) -> None:
    b.run("./configure", f"--prefix={b.tools.prefix}", "--cc=kvp-cc", "--cxx=kvp-c++")
    b.make("-C", "src", "liburing.a", "ENABLE_SHARED=0", "CFLAGS=-O3 -fPIC -fno-stack-protector", "AR=kvp-ar", "RANLIB=kvp-ranlib")
    shutil.copy(b.source / "src/liburing.a", b.tools.prefix / "lib")
    b.headers("src/include/liburing.h")
    b.headers(*(f"src/include/liburing/{path.name}" for path in sorted((b.source / "src/include/liburing").glob("*.h"))), folder="liburing")


def zeromq(b: Builder) -> None:
    # Found out by running programs, which is not possible for a foreign processor: all Linux systems have these.
    have = ("SOCK_CLOEXEC O_CLOEXEC EVENTFD_CLOEXEC SO_BINDTODEVICE SO_KEEPALIVE SO_PRIORITY TCP_KEEPCNT TCP_KEEPIDLE TCP_KEEPINTVL "
            "PTHREAD_SETNAME_2 PTHREAD_SET_AFFINITY GETRANDOM")
    off = ("BUILD_SHARED BUILD_TESTS WITH_PERF_TOOL WITH_DOCS WITH_LIBSODIUM WITH_LIBBSD WITH_TLS ENABLE_CURVE ENABLE_WS ENABLE_DRAFTS "
           "ENABLE_CPACK ENABLE_PRECOMPILED")
    b.cmake(*(f"-DZMQ_HAVE_{word}=1" for word in have.split()), *(f"-D{word}=OFF" for word in off.split()))


def msgpack_c(b: Builder) -> None:
    b.cmake("-DMSGPACK_BUILD_TESTS=OFF", "-DMSGPACK_BUILD_EXAMPLES=OFF", "-DMSGPACK_ENABLE_SHARED=OFF")


def jemalloc(b: Builder) -> None:
    """The sizes that its configure script would find by running programs are given: all systems of a processor have the same."""
    b.configure("--disable-cxx", "--disable-doc", f"--with-lg-page={b.target.lg_page}",
                "--with-lg-hugepage=21", "--with-lg-vaddr=48", "--with-version=5.3.0-0-g0")
    b.make("build_lib_static")
    shutil.copy(b.source / "lib/libjemalloc_pic.a", b.tools.prefix / "lib/libjemalloc.a")
    b.headers("include/jemalloc/jemalloc.h", folder="jemalloc")


# The library, what pkg-config calls it, and what a program that uses it has to be linked with.
LIBRARIES = {
    "xxhash": (xxhash, "libxxhash", "-lxxhash"),
    "protobuf-c": (protobuf_c, "libprotobuf-c", "-lprotobuf-c"),
    "libuv": (libuv, "libuv", "-luv -lpthread -ldl"),
    "json-c": (json_c, "json-c", "-ljson-c"),
    "libmicrohttpd": (libmicrohttpd, "libmicrohttpd", "-lmicrohttpd -lpthread"),
    "openssl": (openssl, "openssl", "-lssl -lcrypto -lpthread -ldl"),
    "curl": (curl, "libcurl", "-lcurl -lssl -lcrypto -lpthread -ldl"),
    "pcre2": (pcre2, "libpcre2-8", "-lpcre2-8"),
    "liburing": (liburing, "liburing", "-luring"),
    "zeromq": (zeromq, "libzmq", "-lzmq -lc++ -lpthread"),
    "msgpack-c": (msgpack_c, "msgpack-c", "-lmsgpackc"),
    "jemalloc": (jemalloc, "jemalloc", "-ljemalloc -lpthread -ldl"),
}
