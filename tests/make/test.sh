#!/usr/bin/env bash
# Runs all tests on the machine's own Vulkan driver, then those that use a device on each of the
# other drivers.
#
# Usage: tests/make/test.sh
#
# A test that uses a device is in a file tests/gpu_*.rs or tests/vulkan_*.rs: cargo starts it
# through the driver's run.sh.
#
# Environment
#   HOB_TEST_DRIVERS  the drivers, "system" among them; "system lavapipe-26.1 lavapipe-25.0
#                     swiftshader" by default

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$here"
read -r -a drivers <<<"${HOB_TEST_DRIVERS:-system lavapipe-26.1 lavapipe-25.0 swiftshader}"
failed=()

say() { printf '\n==> %s\n' "$*"; }

# The mock driver and the validation layer are for single tests of any pass.
if [[ ${drivers[*]} != system ]]; then
    unpacked=()
    for driver in "${drivers[@]}"; do [[ $driver == system ]] || unpacked+=("$driver"); done
    tests/drivers/unpack.sh "${unpacked[@]}" mock validation
fi

say "building the tests"
cargo test --locked --no-run

device_tests=()
for file in tests/gpu_*.rs tests/vulkan_*.rs; do
    [[ ! -f $file ]] || device_tests+=(--test "$(basename "$file" .rs)")
done

# shellcheck disable=SC2018,SC2019 # a target triple is ASCII
triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')

for driver in "${drivers[@]}"; do
    if [[ $driver == system ]]; then
        say "all tests, on the driver of this system"
        cargo test --locked --no-fail-fast || failed+=("$driver")
        continue
    fi
    if [[ ${#device_tests[@]} -gt 0 ]]; then
        say "tests that use a device, on $driver"
        env "CARGO_TARGET_${triple}_RUNNER=$here/target/drivers/$driver/run.sh" \
            cargo test --locked --no-fail-fast "${device_tests[@]}" || failed+=("$driver")
    fi
done

if [[ ${#failed[@]} -gt 0 ]]; then
    say "FAILED on: ${failed[*]}"
    exit 1
fi
say "passed on: ${drivers[*]}"
