#!/usr/bin/env bash
# What flock(1), etcdctl lock, consul lock and rlock cost, and what each does when something breaks: two tables.
#
#   benches/peers.sh [RLOCK [costs]]     RLOCK: the program, target/release/rlock unless given; costs: the first table
#
# As root, on Linux: every row runs in namespaces of its own, with its own servers. Needs flock, ip and redis-server;
# etcd, etcdctl and consul have rows where they are installed. Takes about ten minutes.
set -euo pipefail

readonly SERVER=10.9.0.1 RUNS=${RUNS:-100}
readonly TOOLS=(flock local redis etcdctl consul) BREAKS=(cut KILL TERM STOP)
# How long the next holder is waited for, and both are watched, in seconds.
readonly PATIENCE=90 WATCH=30
self=$(realpath "$0")

has() {
    case $1 in
        flock | local) ;;
        redis) command -v redis-server >/dev/null ;;
        etcdctl) command -v etcd etcdctl >/dev/null ;;
        consul) command -v consul >/dev/null ;;
    esac
}

# The command line of a lock, without the command. A ttl of 5 s where it can be chosen; consul's is 15 s.
words() {
    case $1 in
        flock) echo "flock $dir/lock" ;;
        local) echo "$rlock --url local:$dir/locks run -q --ttl 5s -k job --" ;;
        redis) echo "$rlock --url redis://$SERVER run -q --ttl 5s -k job --" ;;
        etcdctl) echo "etcdctl --endpoints=http://$SERVER:2379 lock --ttl 5 job --" ;;
        consul) echo "consul lock -http-addr=http://$SERVER:8500 -shell=false job" ;;
    esac
}

until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.02
    done
}

serve() {
    export ETCDCTL_API=3
    case $1 in
        redis)
            redis-server --protected-mode no --save '' --dir "$dir" >"$dir/log" 2>&1 &
            until_true 60 redis-cli -h $SERVER ping
            ;;
        etcdctl)
            etcd --data-dir "$dir/etcd" --listen-client-urls http://0.0.0.0:2379 \
                --advertise-client-urls http://$SERVER:2379 >"$dir/log" 2>&1 &
            until_true 60 etcdctl --endpoints=http://$SERVER:2379 endpoint health
            ;;
        consul)
            consul agent -dev -client 0.0.0.0 -bind $SERVER >"$dir/log" 2>&1 &
            until_true 60 consul kv put -http-addr=http://$SERVER:8500 ready yes
            ;;
    esac
}

# A network of two hosts: the servers and the next holder here, the first holder `away`, with a cable between them.
network() {
    mount -t tmpfs none /run
    ip link set lo up
    ip netns add away
    ip link add here type veth peer name there netns away
    ip addr add $SERVER/24 dev here
    ip link set here up
    ip -n away addr add 10.9.0.2/24 dev there
    ip -n away link set there up
    ip -n away link set lo up
}

# Runs on and on, and says when.
ticks() {
    echo "while :; do date +%s%3N >>$dir/$1; sleep 0.05; done"
}

# Breaks the first holder while a second waits, and tells what both commands did.
broken() {
    local tool=$1 how=$2 lock first at next left
    read -ra lock <<<"$(words "$tool")"
    ip netns exec away "${lock[@]}" sh -c "$(ticks first)" >"$dir/out" 2>&1 &
    first=$!
    disown
    until_true 60 test -s "$dir/first"
    "${lock[@]}" sh -c "$(ticks next)" >"$dir/out2" 2>&1 &
    sleep 1
    at=$(date +%s%3N)
    case $how in
        # The next holder, on the server's own host, still reaches it.
        cut) ip link set here down ;;
        *) kill -s "$how" $first ;;
    esac
    if ! until_true $PATIENCE test -s "$dir/next"; then
        if is_fresh "$(tail -n 1 "$dir/first")"; then
            echo "the command runs on and keeps the lock"
        else
            echo "the command is dead, the lock stays"
        fi
        return
    fi
    next=$(head -n 1 "$dir/next")
    local end=$((SECONDS + WATCH))
    while left=$(tail -n 1 "$dir/first") && is_fresh "$left" && ((SECONDS < end)); do sleep 0.1; done
    printf 'next after %s s; ' "$(seconds $((next - at)))"
    if ((SECONDS >= end)); then
        echo "BOTH RUN, $WATCH s and more"
    elif ((left > next)); then
        echo "BOTH RAN, $(seconds $((left - next))) s"
    else
        echo "one at a time"
    fi
}

# Whether a command that said this runs on.
is_fresh() {
    (($1 > $(date +%s%3N) - 1000))
}

seconds() {
    printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100))
}

# The median time of one run of `true`, in microseconds, each lock in turn.
costs() {
    local tool begin times lock base
    local -A all=()
    for _ in $(seq "$RUNS"); do
        for tool in "$@"; do
            read -ra lock <<<"$(words "$tool")"
            begin=${EPOCHREALTIME/./}
            "${lock[@]}" true >/dev/null
            all[$tool]+="$((${EPOCHREALTIME/./} - begin)) "
        done
    done
    for tool in "$@"; do
        times=$(tr ' ' '\n' <<<"${all[$tool]}" | sort -n | grep . | sed -n "$((RUNS / 2 + 1))p")
        base=${base:-$times}
        printf '| %s | %d.%d ms | %d.%d |\n' "$tool" $((times / 1000)) $((times % 1000 / 100)) \
            $((times / base)) $((times * 10 / base % 10))
    done
}

# In namespaces that end with everything in them.
inside() {
    unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private "$self" --inside "$rlock" "$@"
}

if [[ ${1:-} == --inside ]]; then
    rlock=$2
    shift 2
    dir=$(mktemp -d)
    # The commands that run on write until the namespace ends.
    trap 'rm -rf "$dir" 2>/dev/null || true' EXIT
    chmod 700 "$dir"
    network
    if [[ $1 == costs ]]; then
        shift
        for tool in "$@"; do serve "$tool"; done
        costs "$@"
    else
        serve "$1"
        broken "$1" "$2"
    fi
    exit
fi

rlock=$(realpath "${1:-$(dirname "$self")/../target/release/rlock}")
present=()
for tool in "${TOOLS[@]}"; do
    if has "$tool"; then present+=("$tool"); fi
done
printf '\n| %s runs of true each | median | times flock |\n|---|---|---|\n' "$RUNS"
inside costs "${present[@]}"
if [[ ${2:-} == costs ]]; then exit; fi
printf '\n| lock | what breaks | what follows |\n|---|---|---|\n'
for tool in "${present[@]}"; do
    for how in "${BREAKS[@]}"; do
        # They have no server.
        if [[ $how == cut && ($tool == flock || $tool == local) ]]; then continue; fi
        printf '| %s | %s | %s |\n' "$tool" "$how" "$(inside "$tool" "$how")"
    done
done
