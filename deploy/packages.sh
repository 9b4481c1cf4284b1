# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by deploy/quickstart, tests/run and tests/lint: which Debian or Ubuntu packages are needed, which of them are
# missing, and how they get installed. Needs bash. Sets functions kvp_* only.
#
# Groups: build (compile and run), test (unit and end-to-end tests), python (the wheel), fuzz (clang and its run-time), lint, rdma (the guest
# of tests/rdma_vm and the programs that are run in it), release (deploy/release, with those of build).

kvp_packages_build=(gcc libc6-dev meson ninja-build pkg-config protobuf-c-compiler libprotobuf-c-dev libuv1-dev
    libxxhash-dev libjemalloc-dev libjson-c-dev libmicrohttpd-dev libpcre2-dev libibverbs-dev librdmacm-dev
    liburing-dev libcurl4-openssl-dev libssl-dev libzmq3-dev libmsgpack-dev python3)
kvp_packages_test=(libcmocka-dev etcd-server openssl chromium curl iproute2 python3-pytest python3-pytest-xdist)
kvp_packages_fuzz=(clang) # and clang's sanitizer run-time, whose name carries clang's version
kvp_packages_python=(python3-dev python3-venv python3-pip)
kvp_packages_lint=(g++ codespell clang-format shellcheck)
kvp_packages_release=(cmake make patch perl xz-utils binutils dpkg-dev python3-pip)
kvp_packages_rdma=(qemu-system-x86 kmod cpio xz-utils iproute2 ibverbs-providers ibverbs-utils rdmacm-utils perftest)

# What the build needs, for systems without dpkg.
kvp_tools_build=(cc meson ninja pkg-config protoc-c python3)
kvp_modules_build=(libprotobuf-c libuv libxxhash jemalloc json-c libmicrohttpd libpcre2-8 libibverbs librdmacm liburing libcurl openssl libzmq msgpack)

kvp_say() {
    printf '%s\n' "$*"
}

kvp_warn() {
    printf '%s\n' "$*" >&2
}

# kvp_clang_major prints the major version of the `clang` that is installed or would be.
kvp_clang_major() {
    local v=
    if command -v clang >/dev/null 2>&1; then
        v=$(clang -dM -E -x c /dev/null 2>/dev/null | sed -n 's/^#define __clang_major__ //p')
    fi
    if [ -z "$v" ] && command -v apt-cache >/dev/null 2>&1; then
        v=$(apt-cache depends --important clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9][0-9]*\)$/\1/p' | head -n 1)
    fi
    if [ -z "$v" ]; then
        # No package lists yet: the default of the releases that are supported.
        v=$(
            . /etc/os-release 2>/dev/null
            case "${ID:-}:${VERSION_ID:-}" in
            debian:12) echo 14 ;;
            debian:13) echo 19 ;;
            ubuntu:24.04) echo 18 ;;
            esac
        )
    fi
    printf '%s\n' "$v"
}

# kvp_llhttp prints the package with Node's HTTP parser: a library, or in older releases its sources.
kvp_llhttp() {
    local name
    for name in libllhttp-dev node-llhttp; do
        if apt-cache show "$name" >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return
        fi
    done
    ( # no package lists yet
        . /etc/os-release 2>/dev/null
        case "${ID:-}:${VERSION_ID:-}" in
        debian:12 | ubuntu:24.04) echo node-llhttp ;;
        *) echo libllhttp-dev ;;
        esac
    )
}

# kvp_packages_of GROUP... prints the packages of the groups, one a line.
kvp_packages_of() {
    local group major
    for group in "$@"; do
        case $group in
        build)
            printf '%s\n' "${kvp_packages_build[@]}"
            kvp_llhttp
            ;;
        test) printf '%s\n' "${kvp_packages_test[@]}" ;;
        lint) printf '%s\n' "${kvp_packages_lint[@]}" ;;
        python) printf '%s\n' "${kvp_packages_python[@]}" ;;
        rdma) printf '%s\n' "${kvp_packages_rdma[@]}" ;;
        release) printf '%s\n' "${kvp_packages_release[@]}" ;;
        fuzz)
            printf '%s\n' "${kvp_packages_fuzz[@]}"
            major=$(kvp_clang_major)
            if [ -n "$major" ]; then
                printf 'libclang-rt-%s-dev\nllvm-%s\n' "$major" "$major" # llvm: llvm-symbolizer, for readable reports
            fi
            ;;
        *)
            kvp_warn "packages.sh: unknown group $group"
            return 1
            ;;
        esac
    done
}

# kvp_packages_missing GROUP... prints those that dpkg does not have, one a line.
kvp_packages_missing() {
    local pkg
    for pkg in $(kvp_packages_of "$@"); do
        case $(dpkg-query -W -f='${db:Status-Abbrev};' "$pkg" 2>/dev/null) in
        *'ii '*) ;;
        *) printf '%s\n' "$pkg" ;;
        esac
    done
}

# kvp_packages_foreign is for systems without apt: goes on if the build's tools are there, or says what is needed.
kvp_packages_foreign() {
    local tool module absent=()
    for tool in "${kvp_tools_build[@]}"; do
        command -v "$tool" >/dev/null 2>&1 || absent+=("$tool")
    done
    for module in "${kvp_modules_build[@]}"; do
        pkg-config --exists "$module" 2>/dev/null || absent+=("$module")
    done
    if [ ${#absent[@]} -eq 0 ]; then
        return 0
    fi
    kvp_warn "This is not Debian or Ubuntu, so packages cannot be installed from here."
    kvp_warn "Not found: ${absent[*]}"
    kvp_warn "Please install the equivalents of these Debian packages and run this again:"
    kvp_warn "  $(kvp_packages_of "$@" | tr '\n' ' ')"
    return 2
}

# kvp_packages_ensure [--no-install] GROUP... returns 0 when everything is there. It says which packages are missing and
# installs them with apt-get, as root or through sudo. 2: something is missing and may not or cannot be installed.
kvp_packages_ensure() {
    local install=1 log rc
    if [ "$1" = --no-install ]; then
        install=0
        shift
    fi
    if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-query >/dev/null 2>&1; then
        kvp_packages_foreign "$@"
        return
    fi
    local missing as_root=()
    missing=$(kvp_packages_missing "$@")
    if [ -z "$missing" ]; then
        return 0
    fi
    if [ "$(id -u)" -ne 0 ]; then
        as_root=(sudo)
    fi

    local line="apt-get update && ${as_root[*]:+sudo }apt-get install -y --no-install-recommends ${missing//$'\n'/ }"
    line="${as_root[*]:+sudo }$line"
    kvp_say "missing packages: ${missing//$'\n'/ }"
    if [ $install -eq 0 ]; then
        kvp_say "install them with:"
        kvp_say "$line"
        return 2
    fi
    if [ ${#as_root[@]} -gt 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            kvp_warn "not root and no sudo here; as root, run:"
            kvp_warn "apt-get update && apt-get install -y --no-install-recommends ${missing//$'\n'/ }"
            return 2
        fi
        if ! { : </dev/tty; } 2>/dev/null && ! sudo -n true 2>/dev/null; then
            kvp_warn "sudo wants a password and there is no terminal to ask on; run:"
            kvp_warn "$line"
            return 2
        fi
    fi

    log=$(mktemp "${TMPDIR:-/tmp}/kvpool-apt.XXXXXX") || return 1
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 LC_ALL=C
        apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
    kvp_say "installing them with apt-get ..."
    rc=0
    "${apt[@]}" update </dev/null >"$log" 2>&1 || rc=$?
    if [ $rc -ne 0 ]; then
        kvp_warn "apt-get update failed (exit $rc); trying with the package lists at hand"
    fi
    # With lists at hand clang's version may be known better than before.
    missing=$(kvp_packages_missing "$@")
    rc=0
    # shellcheck disable=SC2086 # one word a package
    "${apt[@]}" install -y --no-install-recommends $missing </dev/null >>"$log" 2>&1 || rc=$?
    if [ $rc -ne 0 ]; then
        kvp_warn "apt-get could not install the packages (exit $rc). Its last lines:"
        tail -n 25 "$log" | sed 's/^/  | /' >&2
        kvp_warn "Check the network, the apt sources and the free disk space, then run this again, or by hand:"
        kvp_warn "$line"
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
    missing=$(kvp_packages_missing "$@")
    if [ -n "$missing" ]; then
        kvp_warn "apt-get reported success, but these are still missing: ${missing//$'\n'/ }"
        return 1
    fi
    kvp_say "packages installed"
}
