#!/usr/bin/env bash
# Checks what needs no device: format, lints, licences, structure, scripts, units.
#
# Usage: tests/make/check.sh
#
# All checks run, also after one has failed. A tool that is not here is named with the command that
# installs it; with CHECK_ALL=1 its absence is a failure.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$here"
failed=() skipped=()

check() { # $1: what, the rest: the command
    local what=$1
    shift
    printf '\n==> %s\n' "$what"
    "$@" || failed+=("$what")
}

skip() { # $1: what, $2: how to get the tool
    printf '\n==> %s: skipped, the tool is not here; install it: %s\n' "$1" "$2"
    skipped+=("$1")
}

check "format" cargo fmt --check
check "lints" cargo clippy --locked --all-targets -- -D warnings
check "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --lib --quiet
check "structure (tests/tidy.rs)" env RUST_BACKTRACE=0 cargo test --locked --test tidy

if cargo deny --version >/dev/null 2>&1; then
    check "licences and advisories" cargo deny --locked check
else
    skip "licences and advisories" "cargo install --locked cargo-deny"
fi

if command -v shellcheck >/dev/null; then
    mapfile -t scripts < <(git ls-files '*.sh' .ci/run)
    check "shell scripts" shellcheck --severity=style "${scripts[@]}"
else
    skip "shell scripts" "apt-get install shellcheck"
fi

# AMD's compiler comes with the drivers of the tests, where those can be had.
if [[ -d target/drivers/lavapipe-25.0 ]] || command -v apt-get >/dev/null; then
    check "spilled registers (tests/make/shader-stats.sh)" tests/make/shader-stats.sh --summary
else
    skip "spilled registers" "apt-get, on a Debian or Ubuntu system"
fi

# systemd-analyze wants the program that a unit starts, so it reads copies that start another.
verify_units() {
    local folder unit status=0
    folder=$(mktemp -d)
    mkdir "$folder/system" "$folder/user"
    for unit in systemd/system/* systemd/user/*; do
        sed 's|^ExecStart=[^ ]*hobd|ExecStart=/bin/true|' "$unit" >"$folder/${unit#systemd/}"
    done
    systemd-analyze verify --man=no "$folder"/system/* || status=1
    # Exposure of 2.0 at most, of 10.
    systemd-analyze security --offline=true --threshold=20 --no-pager \
        "$folder/system/hobd.service" >"$folder/exposure" || { cat "$folder/exposure"; status=1; }
    XDG_RUNTIME_DIR=$folder systemd-analyze verify --man=no --user "$folder"/user/* || status=1
    rm -rf "$folder"
    return "$status"
}
if command -v systemd-analyze >/dev/null; then
    check "systemd units" verify_units
else
    skip "systemd units" "apt-get install systemd"
fi

echo
if [[ ${#failed[@]} -gt 0 ]]; then
    printf '==> FAILED: %s\n' "${failed[@]}"
    exit 1
fi
if [[ ${#skipped[@]} -gt 0 ]]; then
    printf '==> not checked: %s\n' "${skipped[@]}"
    [[ -z ${CHECK_ALL:-} ]] || exit 1
fi
echo "==> all checks passed"
