#!/usr/bin/env bash
# Starts a program on the Vulkan driver of this folder, and on no other.
#
# Usage: run.sh PROGRAM [ARGUMENT...]
#
# Written by tests/drivers/unpack.sh. HOB_DRIVER_RUN tells the program this file's path, so that it
# can start its children through it (README.md says why it must).

set -euo pipefail

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $# -gt 0 ]] || {
    echo "usage: $0 PROGRAM [ARGUMENT...]" >&2
    exit 2
}
program=$(command -v -- "$1") || {
    echo "$0: no program is called $1" >&2
    exit 127
}
shift

export HOB_DRIVER=${folder##*/} HOB_DRIVER_RUN=$folder/run.sh
icd=$folder/icd.json
if [[ -n ${RADV_FORCE_FAMILY:-} && -f $folder/icd-radv.json ]]; then icd=$folder/icd-radv.json; fi
export VK_ICD_FILENAMES=$icd VK_DRIVER_FILES=$icd
unset VK_ADD_DRIVER_FILES
# Mesa's layer that reorders devices belongs to the system's driver.
export NODEVICE_SELECT=1
# The layer beside the driver is newer than a distribution's; it is only loaded when asked for.
if [[ -d $folder/../validation ]]; then export VK_LAYER_PATH=$folder/../validation; fi

# Lavapipe keys its cache by neither its version nor the vector width: one cache for each.
export MESA_SHADER_CACHE_DIR=$folder/cache-${LP_NATIVE_VECTOR_WIDTH:-default}
mkdir -p "$MESA_SHADER_CACHE_DIR"

shopt -s nullglob
libraries=("$folder"/usr/lib/*-linux-gnu*)
loaders=("$folder"/usr/lib/*-linux-gnu*/ld-linux-*.so.*)
if [[ ${#loaders[@]} -gt 0 ]] && head -c 4 -- "$program" | grep -q ELF; then
    # The driver needs a newer C library than this machine's.
    exec "${loaders[0]}" --argv0 "$program" --library-path "${libraries[0]}" "$program" "$@"
elif [[ ${#loaders[@]} -eq 0 && ${#libraries[@]} -gt 0 ]]; then
    export LD_LIBRARY_PATH=${libraries[0]}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
exec "$program" "$@"
