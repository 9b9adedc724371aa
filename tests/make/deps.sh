#!/usr/bin/env bash
# Installs by apt what this machine lacks for a task, and nothing that is there.
#
# Usage: tests/make/deps.sh [build|demo|test|check]
#
# Each task needs what the ones before it need. Without root, and without a sudo that asks no
# password, it prints the one command to run.

set -euo pipefail

task=${1:-demo}
packages=() reasons=()

say() { printf 'deps: %s\n' "$*" >&2; }
need() { # $1: package, the rest: what for
    packages+=("$1")
    shift
    reasons+=("$*")
}
have() { command -v "$1" >/dev/null 2>&1; }

# True if a file in one of the folders that the Vulkan loader reads matches. $1: kind, $2: pattern
vulkan_manifest() {
    local folder
    for folder in /usr/share /usr/local/share /etc /etc/xdg "${XDG_DATA_HOME:-$HOME/.local/share}"; do
        # shellcheck disable=SC2086 # the pattern is one
        compgen -G "$folder/vulkan/$1/"$2 >/dev/null && return 0
    done
    return 1
}

check_rust() {
    local wanted have_version here
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/Cargo.toml")
    local advice="install it by rustup (https://rustup.rs), which asks for no root:
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile default
    . \"\$HOME/.cargo/env\""
    if ! have cargo; then
        say "error: Rust $wanted or newer is needed, and cargo is not here. A distribution's is" \
            "often too old (Debian 12 has 1.63); $advice"
        exit 1
    fi
    have_version=$(cd "$here" && rustc --version | cut -d' ' -f2)
    if [[ $(printf '%s\n' "$wanted" "$have_version" | sort -V | head -1) != "$wanted" ]]; then
        say "error: Rust $wanted or newer is needed; rustc here is $have_version." \
            "With rustup: 'rustup update stable'. Without it, $advice"
        exit 1
    fi
}

look_for_build() {
    check_rust
    have c++ || have g++ || have clang++ || need g++ "a C++ compiler"
}

look_for_demo() {
    look_for_build
    # ldconfig is not on everyone's PATH.
    local libraries
    libraries=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true)
    [[ $libraries == *libvulkan.so.1* ]] || need libvulkan1 "the Vulkan loader"
    [[ -n ${VK_ICD_FILENAMES:-}${VK_DRIVER_FILES:-}${VK_ADD_DRIVER_FILES:-} ]] ||
        vulkan_manifest icd.d '*.json' ||
        need mesa-vulkan-drivers "a Vulkan driver (GPUs, and one that runs on the CPU)"
    python3 -m pip --version >/dev/null 2>&1 || /usr/bin/python3 -m pip --version >/dev/null 2>&1 ||
        need python3-pip "pip, which downloads the models"
}

look_for_test() {
    look_for_demo
    vulkan_manifest explicit_layer.d '*alidation*.json' ||
        need vulkan-validationlayers "the Vulkan validation layer"
    have systemd-socket-activate || need systemd "systemd's tools, which start hobd as it does"
    have dbus-daemon || need dbus-daemon "a message bus, on which a test plays logind"
    [[ -r /usr/share/keyrings/debian-archive-keyring.gpg ]] || ! have apt-get ||
        need debian-archive-keyring "keys of the archive that the test drivers come from"
}

look_for_check() {
    look_for_build
    have shellcheck || need shellcheck "the linter of the shell scripts"
    have systemd-analyze || need systemd "systemd's tools, which check the units"
}

install() {
    local reason
    for reason in "${reasons[@]}"; do say "missing: $reason"; done
    local command="apt-get install -y --no-install-recommends ${packages[*]}"
    if ! have apt-get; then
        say "error: there is no apt-get here. Install these by your package manager (the names are" \
            "Debian's): ${packages[*]}"
        exit 1
    fi
    local as_root=()
    if [[ $(id -u) -ne 0 ]]; then
        if have sudo && sudo -n true 2>/dev/null; then
            as_root=(sudo -n)
        else
            say "error: root is needed once. Run this (without sudo, as root), then try again:"
            printf "    sudo sh -c 'apt-get update && %s'\n" "$command" >&2
            exit 1
        fi
    fi
    say "installing ${packages[*]}"
    local log
    log=$(mktemp)
    # shellcheck disable=SC2064 # the file is this one
    trap "rm -f '$log'" EXIT
    # Lists of a fresh container are empty, and those of an old one name packages that are gone.
    if ! { "${as_root[@]}" apt-get -q update &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y \
            --no-install-recommends "${packages[@]}"; } >"$log" 2>&1; then
        cat "$log" >&2
        say "error: apt-get failed, as shown above"
        exit 1
    fi
}

case $task in
    build | demo | test | check) "look_for_$task" ;;
    *)
        say "error: no task is called $task; there are: build demo test check"
        exit 2
        ;;
esac
if [[ ${#packages[@]} -gt 0 ]]; then install; fi
