#!/usr/bin/env bash
# Unpacks Vulkan drivers that run without a GPU into target/drivers/, one folder each.
#
# Usage: tests/drivers/unpack.sh [NAME...]     (all of them without a name)
#
# Nothing is installed: packages of Debian are downloaded by apt into a state of its own, and
# unpacked with dpkg-deb. The archive's address and key are those of this machine's apt
# configuration. README.md beside this file says what each folder holds and how to use it.
#
# Environment
#   HOB_DRIVERS         where the folders go; target/drivers of this repository by default
#   HOB_DEBIAN_ARCHIVE  address of a Debian archive, for a machine whose apt knows none

set -euo pipefail

readonly all_drivers=(lavapipe-26.1 lavapipe-25.0 swiftshader mock validation)
readonly recipe=1 # raise it when a folder's contents change: older folders are then replaced

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${HOB_DRIVERS:-$(cd "$here/../.." && pwd)/target/drivers}
readonly here root
# A stopped unpack leaves its half-done folder here, never under a driver's own name.
readonly work=$root/.work

say() { printf 'drivers: %s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 1
}

# The Debian archive's address and the option that names its key, from apt's own configuration.
find_archive() {
    archive=${HOB_DEBIAN_ARCHIVE:-}
    local signed_by='' repo origin label key
    # shellcheck disable=SC2016 # apt fills these in
    local fields='$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(SIGNED_BY)'
    if [[ -z $archive ]]; then
        while IFS='|' read -r repo origin label key; do
            if [[ $origin == Debian && $label == Debian ]]; then
                archive=$repo signed_by=$key
                break
            fi
        done < <(apt-get indextargets --format "$fields" 'Created-By: Packages' 2>/dev/null)
    fi
    [[ -n $archive ]] || die "apt on this machine knows no Debian archive (or its lists are" \
        "empty: try 'apt-get update'). Name one: HOB_DEBIAN_ARCHIVE=http://HOST/debian $0"

    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    case $signed_by in
        /*) keyring=$signed_by ;;
    esac
    [[ -r $keyring ]] || die "$keyring is missing, so packages of Debian cannot be verified;" \
        "install it: apt-get install debian-archive-keyring"
    archive_options="[signed-by=$keyring]"
}

# apt with a state, a cache and sources of its own: nothing of the machine is changed or consulted
# but how it reaches the network. $1: the Debian release; the rest goes to apt-get.
apt_of() {
    local release=$1 state=$work/apt-$1
    shift
    if [[ ! -e $state/ready ]]; then
        find_archive
        rm -rf "$state"
        mkdir -p "$state/lists/partial" "$state/archives/partial"
        : >"$state/status"
        local suite
        for suite in "$release" "$release-updates" "$release-backports"; do
            printf 'deb %s %s %s main\n' "$archive_options" "$archive" "$suite"
        done >"$state/sources.list"
        # Machines made from container images delete packages after use, in hooks.
        cat >"$state/apt.conf" <<END
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Install-Pkgs;
#clear DPkg::Post-Invoke;
Dir::State "$state";
Dir::State::status "$state/status";
Dir::State::lists "$state/lists";
Dir::State::extended_states "$state/extended_states";
Dir::Cache "$state";
Dir::Cache::archives "$state/archives";
Dir::Etc::sourcelist "$state/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
APT::Keep-Downloaded-Packages "true";
Acquire::Languages "none";
Acquire::Retries "3";
Debug::NoLocking "true";
END
        say "reading the package lists of Debian $release"
        quietly apt-get -c "$state/apt.conf" -qq update
        touch "$state/ready"
    fi
    quietly apt-get -c "$state/apt.conf" "$@"
}

# Runs a command and shows its output only when it fails.
quietly() {
    local output
    if ! output=$("$@" 2>&1); then
        printf '%s\n' "$output" >&2
        die "failed: $*"
    fi
}

# Downloads packages with everything they depend on and unpacks them.
# $1: Debian release, $2: the folder, the rest: package names, as apt takes them.
unpack_closure() {
    local release=$1 folder=$2 deb
    shift 2
    apt_of "$release" -qq -y --download-only -t "$release-backports" install "$@"
    for deb in "$work/apt-$release/archives"/*.deb; do
        dpkg-deb -x "$deb" "$folder"
    done
    # Releases before trixie keep some libraries outside usr.
    if [[ -d $folder/lib && ! -L $folder/lib ]]; then
        cp -a "$folder/lib/." "$folder/usr/lib/"
        rm -rf "${folder:?}"/lib "${folder:?}"/lib64
    fi
    # Most of the size, and no part of a driver.
    rm -rf "$folder"/usr/share/{doc,locale,man,perl,bash-completion,zoneinfo,i18n,lintian} \
        "${folder:?}"/{etc,var} "${folder:?}"/usr/{bin,sbin} \
        "$folder"/usr/lib/*/{gconv,perl,perl-base}
}

# Mesa's lavapipe. $1: folder, $2: Debian release, $3: the version wanted.
make_lavapipe() {
    local folder=$1 release=$2 version=$3
    unpack_closure "$release" "$folder" mesa-vulkan-drivers libvulkan1 libstdc++6
    find_library "$folder" libvulkan_lvp.so
    local libraries=${driver_library%/*} package loader
    loader=$(find "$libraries" -name 'ld-linux-*.so.*' -print -quit)
    [[ -n $loader ]] || die "no dynamic loader among the packages of Debian $release"
    package=$(basename "$work/apt-$release/archives"/mesa-vulkan-drivers_*.deb)
    say "unpacked Mesa $(cut -d_ -f2 <<<"$package")"
    [[ $package == mesa-vulkan-drivers_"$version".* ]] ||
        say "note: the folder is named for Mesa $version, and $release-backports has moved on"
    drop_c_library_if_ours_is_newer "$folder" "$loader"
}

# A program built here needs this machine's C library or a newer one. Where the folder's is older,
# it would be in the way, and the folder's driver runs on ours as well.
drop_c_library_if_ours_is_newer() {
    local folder=$1 loader=$2 theirs ours
    theirs=$("$loader" --version | sed -nE '1s/.* ([0-9]+\.[0-9]+)\.?$/\1/p')
    ours=$(getconf GNU_LIBC_VERSION | sed 's/.* //')
    [[ -n $theirs && -n $ours ]] || die "cannot compare C libraries: ours '$ours', $loader '$theirs'"
    if [[ $(printf '%s\n' "$ours" "$theirs" | sort -V | tail -1) == "$ours" ]]; then
        local libraries=${loader%/*}
        rm -f "$libraries"/{ld-linux-*,libc.so.6,libm.so.6,libmvec.so.1,libpthread.so.0} \
            "$libraries"/{libdl.so.2,librt.so.1,libresolv.so.2,libanl.so.1,libutil.so.1} \
            "$libraries"/{libc_malloc_debug.so.0,libnsl.so.1,libthread_db.so.1} \
            "$libraries"/{libnss_*,libBrokenLocale.so.1,libgcc_s.so.1,libstdc++.so.6*}
        rm -rf "$folder"/usr/lib64 "$folder"/usr/lib/ld-linux-*
    fi
}

# Sets driver_library to the one file of that name in a folder.
find_library() {
    driver_library=$(find "$1" -name "$2" -print -quit)
    [[ -n $driver_library ]] || die "$2 is not in the packages unpacked into $1"
}

# Chromium's package carries SwiftShader, the mock driver and a recent validation layer.
chromium_package() {
    local into=$work/chromium
    if [[ ! -e $into/ready ]]; then
        rm -rf "$into"
        mkdir -p "$into"
        (cd "$into" && apt_of bookworm -qq download chromium-common)
        dpkg-deb -x "$into"/chromium-common_*.deb "$into"
        rm -f "$into"/*.deb
        touch "$into/ready"
    fi
    chromium=$into/usr/lib/chromium
}

# $1: folder, $2: library of Chromium's package
make_from_chromium() {
    chromium_package
    [[ -f $chromium/$2 ]] || die "chromium-common holds no $2 any more"
    cp "$chromium/$2" "$1/"
}

make_driver() {
    local name=$1 folder=$work/$1
    rm -rf "$folder"
    mkdir -p "$folder"
    case $name in
        lavapipe-26.1) make_lavapipe "$folder" trixie 26.1 ;;
        lavapipe-25.0) make_lavapipe "$folder" bookworm 25.0 ;;
        swiftshader) make_from_chromium "$folder" libvk_swiftshader.so ;;
        mock) make_from_chromium "$folder" libVkICD_mock_icd.so ;;
        validation) make_from_chromium "$folder" libVkLayer_khronos_validation.so ;;
    esac
    echo "$recipe" >"$folder/.recipe"
    rm -rf "${root:?}/$name"
    mv "$folder" "$root/$name"
    say "$name is ready"
}

# Writes standard input to $1 unless that is what it holds, in one step, mode $2.
write_file() {
    local text
    text=$(cat)
    if [[ ! -f $1 || $(<"$1") != "$text" ]]; then
        printf '%s\n' "$text" >"$1.new"
        chmod "$2" "$1.new"
        mv "$1.new" "$1"
    fi
}

# $1: the JSON file, $2: the driver's library, $3: the Vulkan version it speaks at least
write_icd() {
    write_file "$1" 644 <<END
{
  "file_format_version": "1.0.1",
  "ICD": { "library_path": "$2", "api_version": "$3" }
}
END
}

# The files that hold absolute paths: written on every run, since a checkout may have moved.
describe() {
    local name=$1 folder=$root/$1 version=1.3.0
    case $name in
        validation)
            write_file "$folder/VkLayer_khronos_validation.json" 644 <<END
{
  "file_format_version": "1.2.0",
  "layer": {
    "name": "VK_LAYER_KHRONOS_validation",
    "type": "GLOBAL",
    "library_path": "$folder/libVkLayer_khronos_validation.so",
    "api_version": "1.4.0",
    "implementation_version": "1",
    "description": "Khronos validation layer",
    "instance_extensions": [
      { "name": "VK_EXT_debug_utils", "spec_version": "2" },
      { "name": "VK_EXT_validation_features", "spec_version": "6" },
      { "name": "VK_EXT_layer_settings", "spec_version": "2" },
      { "name": "VK_EXT_debug_report", "spec_version": "9" }
    ],
    "device_extensions": [
      { "name": "VK_EXT_validation_cache", "spec_version": "1" },
      { "name": "VK_EXT_debug_marker", "spec_version": "4" },
      { "name": "VK_EXT_tooling_info", "spec_version": "1" }
    ]
  }
}
END
            return
            ;;
        lavapipe-*)
            find_library "$folder" libvulkan_lvp.so
            version=1.4.0
            ;;
        swiftshader) driver_library=$folder/libvk_swiftshader.so ;;
        mock) driver_library=$folder/libVkICD_mock_icd.so version=1.4.0 ;;
    esac
    write_icd "$folder/icd.json" "$driver_library" "$version"
    # The same packages hold AMD's driver. Its compiler runs without the hardware, up to Mesa 25.
    local radv=${driver_library%/*}/libvulkan_radeon.so
    [[ ! -f $radv || $name == lavapipe-26* ]] || write_icd "$folder/icd-radv.json" "$radv" "$version"
    write_file "$folder/run.sh" 755 <"$here/run-template.sh"
}

is_ready() {
    [[ -f $root/$1/.recipe && $(<"$root/$1/.recipe") == "$recipe" ]]
}

main() {
    local names=("$@") name missing=()
    [[ ${#names[@]} -gt 0 ]] || names=("${all_drivers[@]}")
    for name in "${names[@]}"; do
        [[ " ${all_drivers[*]} " == *" $name "* ]] ||
            die "no driver is called $name; there are: ${all_drivers[*]}"
    done

    mkdir -p "$work"
    exec 9>"$root/.lock"
    flock 9
    for name in "${names[@]}"; do is_ready "$name" || missing+=("$name"); done
    if [[ ${#missing[@]} -gt 0 ]]; then
        local tool
        for tool in apt-get dpkg-deb flock; do
            command -v "$tool" >/dev/null ||
                die "$tool is needed to fetch drivers from Debian's packages, and is not here"
        done
        for name in "${missing[@]}"; do make_driver "$name"; done
    fi
    rm -rf "$work"
    for name in "${names[@]}"; do describe "$name"; done
}

main "$@"
