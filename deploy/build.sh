# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by deploy/quickstart and tests/run: configure and build a meson directory quietly. The log is kept beside the
# build and its end is shown when something fails. Needs bash, $root (the repository) and deploy/packages.sh.

# kvp_build_source DIR prints the source directory that the build directory was made for, or nothing.
kvp_build_source() {
    python3 - "$1" 2>/dev/null <<'PY' || true
import json, sys
with open(sys.argv[1] + "/meson-info/meson-info.json") as f:
    print(json.load(f)["directories"]["source"])
PY
}

# kvp_build_differs DIR -Dname=value... succeeds when an option of the configured directory has another value.
kvp_build_differs() {
    python3 - "$@" <<'PY'
import json, sys
with open(sys.argv[1] + "/meson-info/intro-buildoptions.json") as f:
    have = {o["name"]: o["value"] for o in json.load(f)}
for arg in sys.argv[2:]:
    name, want = arg[2:].split("=", 1)
    value = have.get(name)
    if isinstance(value, list):
        value = ",".join(value)
    if isinstance(value, bool):
        value = "true" if value else "false"
    if value != want:
        sys.exit(0)
sys.exit(1)
PY
}

# kvp_build_log_tail LOG shows the end of a log on standard error.
kvp_build_log_tail() {
    kvp_warn "---- the end of $1:"
    tail -n 60 -- "$1" | sed 's/^/  | /' >&2
    kvp_warn "----"
}

# kvp_build_setup DIR LOG [FIRST...] -- [-Dname=value...] configures DIR. The words before -- count only when the
# directory is made, those after it always.
kvp_build_setup() {
    local dir=$1 log=$2 source first=()
    shift 2
    while [ "$1" != -- ]; do
        first+=("$1")
        shift
    done
    shift
    mkdir -p -- "$(dirname -- "$log")"
    if [ -e "$dir" ] && ! [ -w "$dir" ]; then
        kvp_warn "$dir exists and belongs to somebody else ($(stat -c %U -- "$dir")): remove it, or run this as them"
        return 1
    fi
    if [ -f "$dir/build.ninja" ]; then
        source=$(kvp_build_source "$dir")
        # shellcheck disable=SC2154 # root is set by who sources this
        if [ "$source" = "$root" ]; then
            if [ $# -gt 0 ] && kvp_build_differs "$dir" "$@"; then
                meson configure "$dir" "$@" </dev/null >"$log" 2>&1 || {
                    kvp_warn "meson could not change the options of $dir"
                    kvp_build_log_tail "$log"
                    return 1
                }
            fi
            return 0
        fi
        kvp_say "$dir was configured for ${source:-an unknown place}: starting it anew"
    fi
    # An empty or foreign directory, or one where meson stopped half way.
    if [ -d "$dir/meson-private" ]; then
        rm -rf -- "$dir"
        mkdir -p -- "$(dirname -- "$log")"
    fi
    if ! meson setup "$dir" "$root" ${first[@]+"${first[@]}"} "$@" </dev/null >"$log" 2>&1; then
        kvp_warn "meson could not configure $dir"
        kvp_build_log_tail "$log"
        return 1
    fi
}

# kvp_build_make DIR LOG [TARGET...] builds, quietly.
kvp_build_make() {
    local dir=$1 log=$2
    shift 2
    if ! ninja -C "$dir" "$@" </dev/null >>"$log" 2>&1; then
        kvp_warn "the build in $dir failed"
        kvp_build_log_tail "$log"
        return 1
    fi
}
