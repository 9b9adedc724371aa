#!/usr/bin/env bash
# Runs other people's clients against a daemon of its own, over its Unix socket: shapes, streams, tools,
# errors. What they answer is the model's business, and is not looked at.
#
# Usage: tests/clients/run.sh
#
# Environment
#   MODEL  a GGUF file with a chat template; target/models/SmolLM2-135M-Instruct.Q4_1.gguf by default
#          (tests/models/fetch.sh)
#   BIN    where hobd is; target/debug by default

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
model=${MODEL:-${HOB_MODELS:-$here/target/models}/SmolLM2-135M-Instruct.Q4_1.gguf}
bin=${BIN:-$here/target/debug}
clients=$here/target/clients
log=$clients/hobd.log
start_seconds_max=300

[[ -f $model ]] || { echo "no model at $model: run tests/models/fetch.sh, or set MODEL" >&2; exit 2; }
[[ -x $bin/hobd ]] || { echo "no hobd in $bin: run cargo build, or set BIN" >&2; exit 2; }

mkdir -p "$clients"
if [[ ! -x $clients/python/bin/python ]]; then python3 -m venv "$clients/python"; fi
"$clients/python/bin/pip" install --quiet --disable-pip-version-check \
    -r "$here/tests/clients/requirements.txt"

folder=$(mktemp -d "${TMPDIR:-/tmp}/hob-clients.XXXXXX")
daemon=
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local status=$?
    trap - EXIT
    if [[ -n $daemon ]]; then
        kill -TERM "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    fi
    rm -rf "$folder"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

export HOB_SOCKET=$folder/hob.sock
XDG_STATE_HOME=$folder/state "$bin/hobd" --model "$model" --socket "$HOB_SOCKET" >"$log" 2>&1 &
daemon=$!
for ((tenths = 0; ; tenths++)); do
    kill -0 "$daemon" 2>/dev/null || { tail -n 20 "$log" >&2; exit 1; }
    if grep -q ' ready' "$log"; then break; fi
    ((tenths < start_seconds_max * 10)) || { echo "hobd was not ready in time" >&2; exit 1; }
    sleep 0.1
done

failed=0
for script in openai_python anthropic_python; do
    echo "==> $script"
    "$clients/python/bin/python" "$here/tests/clients/$script.py" || failed=1
done
exit "$failed"
