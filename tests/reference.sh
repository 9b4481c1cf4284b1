# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The reference's own wheel, which tests compare this tree's with. Sourced.

kvp_reference_wheel=mooncake-transfer-engine-non-cuda==0.3.13.post1

# kvp_reference_venv PYTHON VENV LOG: the wheel (46 MB) in an environment of its own, kept from one run to the next. Where it cannot
# be had it returns 1, and LOG says why.
kvp_reference_venv() {
    [ "$(cat "$2/installed" 2>/dev/null)" != "$kvp_reference_wheel" ] || return 0
    rm -rf -- "$2"
    "$1" -m venv "$2" >"$3" 2>&1 && timeout 120 "$2/bin/pip" install -q --no-deps "$kvp_reference_wheel" >>"$3" 2>&1 || return 1
    echo "$kvp_reference_wheel" >"$2/installed"
}
