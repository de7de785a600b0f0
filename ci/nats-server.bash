# A nats-server with JetStream on loopback. Sourced, after lib.bash: `get_nats_server` finds one, or unpacks Debian's below the target directory;
# `start_nats_server PLACE` starts it with its store in that directory. They set `server`, `pid`, `url` and `token`.

. ci/debian.bash

get_nats_server() {
    # The package is unpacked and not installed: installed it would start a service that listens on all addresses.
    local target
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    server=$(PATH=$PATH:/usr/sbin:$target/nats/usr/sbin command -v nats-server || true)
    if [[ -z $server ]]; then
        echo "no nats-server here: unpacking Debian's"
        unpack_debian "$target/nats" nats-server || skip "nats: nats-server could not be downloaded"
        server=$target/nats/usr/sbin/nats-server
    fi
    "$server" --version
}

start_nats_server() {
    local place=$1
    token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    cat >"$place/config" <<END
listen: "127.0.0.1:-1"
ports_file_dir: "$place"
jetstream { store_dir: "$place/store" }
authorization { token: "$token" }
END
    "$server" -c "$place/config" >"$place/log" 2>&1 </dev/null &
    pid=$!
    for ((tries = 0; tries < 200; tries++)); do
        url=$(sed -n 's/.*\(nats:\/\/127\.0\.0\.1:[0-9]*\).*/\1/p' "$place"/*.ports 2>/dev/null | head -n 1 || true)
        [[ -z $url ]] || return 0
        kill -0 "$pid" 2>/dev/null || { cat "$place/log" >&2; fail "nats-server has ended"; }
        sleep 0.05
    done
    cat "$place/log" >&2
    fail "nats-server does not say where it listens"
}
