# Programs of Debian's packages, below the target directory. Sourced, after lib.bash.

# unpack_debian DIRECTORY PACKAGE...: nothing is installed.
unpack_debian() {
    local directory=$1
    shift
    root() { if [[ $(id -u) == 0 ]]; then "$@"; else sudo -n "$@"; fi; }
    command -v apt-get dpkg-deb >/dev/null || skip "there is no $1, and no apt-get to get it by"
    mkdir -p "$directory"
    (
        cd "$directory"
        { apt-get download -qq "$@" || { root apt-get update -qq && apt-get download -qq "$@"; }; } || exit 1
        for package in "$@"; do dpkg-deb -x "$package"_*.deb . || exit 1; done
    ) >/dev/null 2>&1
}
