#!/usr/bin/env bash
# Compiles every pipeline for AMD GPUs that are not there, and shows what came of it.
#
# Usage: tests/make/shader-stats.sh [--summary] [FAMILY...]
#
# AMD's driver (of the Mesa in target/drivers/lavapipe-25.0) compiles for any family of its GPUs
# without the hardware. A spilled register fails the run. With --summary only the extremes of each
# kernel are shown.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
driver=$here/target/drivers/lavapipe-25.0
hob=${HOB:-$here/target/debug/hob}
summary=
if [[ ${1:-} == --summary ]]; then summary=1 && shift; fi
families=("$@")
[[ ${#families[@]} -gt 0 ]] || families=(vega10 navi21 navi31 gfx1151 gfx1201)

[[ -f $driver/icd-radv.json ]] || "$here/tests/drivers/unpack.sh" lavapipe-25.0
[[ -n ${HOB:-} ]] || (cd "$here" && cargo build --locked --quiet --bin hob)

# The lines of each kernel with the most registers and with the fewest waves.
extremes() {
    awk 'NR <= 2 { print; next }
         { if (!($1 in most)) { order[++kernels] = $1; most[$1] = -1 }
           registers = $(NF - 6)
           if (registers > most[$1]) { most[$1] = registers; line[$1] = $0 } }
         END { for (i = 1; i <= kernels; i++) print line[order[i]] }'
}

# One core each, two at a time.
tables=$(mktemp -d)
trap 'rm -rf "$tables"' EXIT
for family in "${families[@]}"; do
    [[ $(jobs -rp | wc -l) -lt 2 ]] || wait -n || true
    RADV_FORCE_FAMILY=$family "$driver/run.sh" "$hob" shader-stats >"$tables/$family" ||
        touch "$tables/$family.failed" &
done
wait

status=0
for family in "${families[@]}"; do
    if [[ -n $summary ]]; then extremes <"$tables/$family"; else cat "$tables/$family"; fi
    [[ ! -e $tables/$family.failed ]] || status=1
    echo
done
exit "$status"
