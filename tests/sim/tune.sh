#!/bin/sh
# What other values of the constants in src/timing.rs would cost and bring, as the simulator measures it: a table.
#
#   tests/sim/tune.sh [N]     N: how much is measured (RLOCK_MEASURE), 10 unless given; then it takes about half an hour
#
# Each line is one change to a copy of the tree. The first has none.
set -eu
cd "$(dirname "$0")/../.."

RLOCK_MEASURE=${1:-10}
export RLOCK_MEASURE
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r Cargo.toml Cargo.lock build.rs src tests benches README.md "$copy"
timing=$copy/src/timing.rs
cp "$timing" "$copy/as-it-is"
export CARGO_TARGET_DIR="$PWD/target/tune"

# variant NAME [SED]...
variant() {
    name=$1
    shift
    cp "$copy/as-it-is" "$timing"
    for change in "$@"; do
        cp "$timing" "$copy/before"
        sed -i "$change" "$timing"
        if cmp -s "$timing" "$copy/before"; then
            echo "tune.sh: changes nothing: $change" >&2
            exit 1
        fi
    done
    said=$(cd "$copy" && cargo test -q --locked --test sim measure_variant -- --nocapture 2>&1) || {
        echo "$said" >&2
        exit 1
    }
    echo "| $name | $(echo "$said" | sed -n 's/^.*VARIANT //p')"
}

constant() {
    printf '%s' "s/^\\(pub const $1: Duration = Duration::from_\\).*/\\1millis($2);/"
}

cat <<'HEAD'
| | 30 s, 10 % | 5 s, 5 % | 2 s, 5 % | 5 s, halting | requests a minute | hand-over, 0 % | 1 % | 5 % | longest idle | places lost | requests a command | places lost, pauses | laws |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
HEAD
variant 'as it is'
variant 'renew every ttl/2' '/^pub fn renew_every/,/^}/s;ttl / 3;ttl / 2;'
variant 'renew every ttl/4' '/^pub fn renew_every/,/^}/s;ttl / 3;ttl / 4;'
variant 'renew every ttl/5' '/^pub fn renew_every/,/^}/s;ttl / 3;ttl / 5;'
variant 'grace ttl/10' '/^pub fn grace/,/^}/s;ttl / 6;ttl / 10;'
variant 'grace ttl/4' '/^pub fn grace/,/^}/s;ttl / 6;ttl / 4;'
variant 'try ttl/30' 's;(ttl / 15);(ttl / 30);'
variant 'try ttl/8' 's;(ttl / 15);(ttl / 8);'
variant 'try ttl/5' 's;(ttl / 15);(ttl / 5);' "$(constant LONGEST_TRY 6000)"
variant 'longest try 1 s' "$(constant LONGEST_TRY 1000)"
variant 'first pause 10 ms' "$(constant FIRST_PAUSE 10)"
variant 'first pause 200 ms' "$(constant FIRST_PAUSE 200)"
variant "waiter's try window/10" 's;(WINDOW / 5);(WINDOW / 10);'
variant "waiter's try window/2" 's;(WINDOW / 5);(WINDOW / 2);'
variant 'window 1.5 s' "$(constant WINDOW 1500)"
variant 'window 2 s' "$(constant WINDOW 2000)"
variant 'window 5 s' "$(constant WINDOW 5000)"
variant 'refresh 0.5 s for all' "$(constant REFRESH 500)" "$(constant LONGEST_REFRESH 500)"
variant 'refresh 1 s for all' "$(constant LONGEST_REFRESH 1000)"
variant 'refresh 2 s for all' "$(constant REFRESH 2000)" "$(constant LONGEST_REFRESH 2000)"
variant 'refresh up to 2.5 s' "$(constant LONGEST_REFRESH 2500)"
variant 'refresh up to 5 s' "$(constant LONGEST_REFRESH 5000)"
variant 'heartbeat 5 s' "$(constant HEARTBEAT 5000)"
variant 'heartbeat 20 s' "$(constant HEARTBEAT 20000)"
