#!/bin/sh
# Builds rlock from this checkout and installs it. See ./install.sh --help.
set -eu

usage() {
    cat <<'END'
usage: [PREFIX=DIR] ./install.sh [--binary FILE] [--uninstall]

Builds rlock and installs the program, its man pages and its completions under PREFIX: /usr/local for root, else
~/.local. Files are replaced by rename, so a running rlock is not disturbed.

  --binary FILE  install this program, built before, instead of building one
  --uninstall    remove what was installed
  --help         print this
END
}

say() {
    printf 'install.sh: %s\n' "$1"
}

fail() {
    say "$1" >&2
    exit 1
}

# Every file beside the program: where it is here, and where it goes.
files() {
    for page in man/*.1; do
        printf '%s %s\n' "$page" "share/man/man1/${page##*/}"
    done
    printf '%s %s\n' completions/rlock.bash share/bash-completion/completions/rlock
    printf '%s %s\n' completions/_rlock share/zsh/site-functions/_rlock
    printf '%s %s\n' completions/rlock.fish share/fish/vendor_completions.d/rlock.fish
}

build() {
    command -v cargo >/dev/null || fail "cargo is not in PATH; install Rust (https://rustup.rs), or give --binary FILE"
    say "building (some minutes the first time)"
    target=${CARGO_TARGET_DIR:-target}
    cargo build --release --locked --bin rlock --target-dir "$target" || fail "the build failed; nothing was installed"
    binary=$target/release/rlock
}

# By rename: whoever opens the file has the old one or the new one, whole.
put() {
    from=$1 to=$prefix/$2 mode=$3
    mkdir -p "${to%/*}" || fail "cannot make ${to%/*}; choose another PREFIX"
    temporary=$to.new.$$
    if ! cp "$from" "$temporary" || ! chmod "$mode" "$temporary" || ! mv -f "$temporary" "$to"; then
        rm -f "$temporary"
        fail "cannot write $to; choose another PREFIX, or be root"
    fi
    say "installed $to"
}

install_all() {
    if [ -z "$binary" ]; then
        build
    fi
    [ -f "$binary" ] || fail "there is no program $binary"
    put "$binary" bin/rlock 755
    files | while read -r from to; do
        put "$from" "$to" 644
    done
    case :$PATH: in
        *:"$prefix/bin":*) ;;
        *) say "$prefix/bin is not in PATH; add it: export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
}

uninstall_all() {
    found=$({ echo - bin/rlock && files; } | while read -r _ to; do
        if [ -e "$prefix/$to" ] || [ -L "$prefix/$to" ]; then
            printf '%s\n' "$to"
        fi
    done)
    [ -n "$found" ] || fail "nothing of rlock's is under $prefix"
    printf '%s\n' "$found" | while read -r to; do
        rm -f "$prefix/$to" || fail "cannot remove $prefix/$to"
        say "removed $prefix/$to"
    done
}

binary='' uninstall=''
while [ $# -gt 0 ]; do
    case $1 in
        --binary)
            [ $# -ge 2 ] || fail "--binary needs a FILE"
            binary=$2
            shift
            ;;
        --uninstall) uninstall=yes ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) fail "unknown word $1; try: ./install.sh --help" ;;
    esac
    shift
done

# A relative FILE is relative to where the user stands.
case $binary in
    '' | /*) ;;
    *) binary=$PWD/$binary ;;
esac
if [ -n "${PREFIX:-}" ]; then
    prefix=$PREFIX
elif [ "$(id -u)" -eq 0 ]; then
    prefix=/usr/local
else
    prefix=${HOME:?is not set; set PREFIX}/.local
fi
case $prefix in
    /*) ;;
    *) prefix=$PWD/$prefix ;;
esac
cd "$(dirname "$0")"

if [ -n "$uninstall" ]; then
    uninstall_all
else
    install_all
fi
