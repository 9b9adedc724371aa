#!/usr/bin/env bash
# Shows hob at work: starts a daemon of its own on a small model, asks it something, stops it.
#
# Usage: tests/make/demo.sh [QUESTION]
#
# Environment
#   MODEL       another GGUF file
#   HOB_MODELS  where `tests/models/fetch.sh` puts models; target/models by default

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
question=${1:-"Why is the sky blue? Answer in two sentences."}
model=${MODEL:-${HOB_MODELS:-$here/target/models}/SmolLM2-135M-Instruct.Q4_1.gguf}
bin=$here/target/release
log=$here/target/demo/hobd.log
start_seconds_max=120
stop_seconds_max=10

mkdir -p "$here/target/demo"
# A folder of its own for the socket: short (a socket's path holds 107 bytes) and private.
socket_folder=$(mktemp -d "${TMPDIR:-/tmp}/hob-demo.XXXXXX")
socket=$socket_folder/hob.sock
daemon=

bold='' plain=''
if [[ -t 2 ]]; then bold=$'\e[1m' plain=$'\e[0m'; fi
say() { printf '%s==>%s %s\n' "$bold" "$plain" "$*" >&2; }

clean_up() {
    local status=$?
    trap - EXIT
    if [[ -n $daemon ]] && kill -TERM "$daemon" 2>/dev/null; then
        say "stopping hobd"
        local tenths
        for ((tenths = 0; tenths < stop_seconds_max * 10; tenths++)); do
            kill -0 "$daemon" 2>/dev/null || break
            sleep 0.1
        done
        if kill -KILL "$daemon" 2>/dev/null; then
            say "error: hobd had not stopped after $stop_seconds_max s, and was killed"
            status=1
        fi
        wait "$daemon" 2>/dev/null || true
    fi
    rm -rf "$socket_folder"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    say "error: $*"
    echo "--- the end of $log" >&2
    tail -n 20 "$log" >&2 || true
    exit 1
}

say "starting hobd on $(basename "$model") (its log: ${log#"$here/"})"
# Nor may it read, or leave behind, sessions among the caller's own.
XDG_STATE_HOME=$socket_folder/state "$bin/hobd" --model "$model" --socket "$socket" >"$log" 2>&1 &
daemon=$!

for ((tenths = 0; ; tenths++)); do
    if ! kill -0 "$daemon" 2>/dev/null; then
        wait "$daemon" && status=0 || status=$?
        daemon=
        fail "hobd stopped with status $status"
    fi
    if [[ -S $socket ]] && "$bin/hob" --socket "$socket" status >/dev/null 2>&1; then break; fi
    ((tenths < start_seconds_max * 10)) || fail "hobd did not answer within $start_seconds_max s"
    sleep 0.1
done
"$bin/hob" --socket "$socket" status >&2

say "hob run \"$question\""
"$bin/hob" --socket "$socket" run "$question" || fail "hob run failed"
echo
