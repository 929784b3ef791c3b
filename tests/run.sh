#!/bin/sh
# Runs every test. Installs the Debian packages that the tests need and this host lacks, if it may.
set -eu
cd "$(dirname "$0")/.."

missing=''
need() {
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need redis-server redis-server
need redis-cli redis-tools
need shellcheck shellcheck
need zsh zsh
need fish fish
need man man-db
need script bsdutils
need setsid util-linux
need tmux tmux
need ps procps
need perl perl
need cc gcc
need ip iproute2
need hostname hostname
need sqlite3 sqlite3
need systemd-analyze systemd
need git git
need etcd etcd-server
need etcdctl etcd-client

if [ -n "$missing" ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "tests/run.sh: installing$missing"
        apt-get update -q
        # shellcheck disable=SC2086 # it is a list of words
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
    else
        echo "tests/run.sh: missing are$missing; tests that need them will fail. As root: apt-get install$missing" >&2
    fi
fi

# What is set for the user's own locks is not for the tests.
unset RLOCK_URL RLOCK_CONFIG RLOCK_CLAIM RLOCK_KEY RLOCK_TOKEN
# Nor is what nohup or a job in the background ignores: rlock would rightly let it be.
exec env --default-signal=HUP,INT,QUIT cargo test --locked --no-fail-fast --lib --bins --tests "$@"
