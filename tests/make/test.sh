#!/usr/bin/env bash
# Runs all tests on the machine's own Vulkan driver, and those that use a device on each of the
# other drivers, two drivers at a time.
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

device_tests=() other_tests=()
for file in tests/*.rs; do
    name=$(basename "$file" .rs)
    case $name in
        gpu_* | vulkan_*) device_tests+=(--test "$name") ;;
        *) other_tests+=(--test "$name") ;;
    esac
done

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# shellcheck disable=SC2018,SC2019 # a target triple is ASCII
triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')

# Shows what a pass says once it is over, in one piece: others run beside it. $1: the driver
device_pass() {
    local driver=$1 runner=()
    [[ $driver == system ]] ||
        runner=(env "CARGO_TARGET_${triple}_RUNNER=$here/target/drivers/$driver/run.sh")
    "${runner[@]}" cargo test --locked --no-fail-fast "${device_tests[@]}" \
        >"$logs/$driver" 2>&1 || touch "$logs/$driver.failed"
    {
        flock 9
        say "tests that use a device, on $driver"
        cat "$logs/$driver"
    } 9>"$logs/lock"
}

if [[ " ${drivers[*]} " == *" system "* ]]; then
    # These also wait for sockets, timers and processes, and so have the machine for themselves.
    say "tests that use no device by themselves"
    cargo test --locked --no-fail-fast --lib "${other_tests[@]}" || failed+=(system)
    cargo test --locked --doc || failed+=(system)
fi

# A driver compiles most of the time, on one core.
say "tests that use a device, on ${drivers[*]}: two drivers at a time"
for driver in "${drivers[@]}"; do
    [[ $(jobs -rp | wc -l) -lt 2 ]] || wait -n || true
    device_pass "$driver" &
done
wait
for driver in "${drivers[@]}"; do
    [[ ! -e $logs/$driver.failed ]] || failed+=("$driver")
done

if [[ ${#failed[@]} -gt 0 ]]; then
    say "FAILED on: ${failed[*]}"
    exit 1
fi
say "passed on: ${drivers[*]}"
