# The main job on a cluster, which a lane kills in the middle. Sourced, after lib.bash.

# Starts it, until it has killed its first worker: `dog` is its process. Its words go into the file FILE.
begin_dog() { # FILE, program, arguments
    local file=$1
    shift
    "$@" --block 96 --kill-at 2 2>"$file" </dev/null &
    dog=$!
    for ((tries = 0; tries < 2000; tries++)); do
        ! grep -q '^kill -9' "$file" || return 0
        kill -0 "$dog" 2>/dev/null || break
        sleep 0.05
    done
    cat "$file" >&2
    fail "cluster_dog has killed no worker"
}

lives() { # pid
    [[ $(ps -o stat= -p "$1") == [!Z]* ]]
}

# Kills it as a crash does, and waits until none of its worker processes is left.
kill_dog() {
    local workers pid status=0
    mapfile -t workers < <(ps -o pid= --ppid "$dog")
    ((${#workers[@]} > 0)) || fail "cluster_dog has no worker process"
    kill -9 "$dog"
    wait "$dog" || status=$?
    ((status == 137)) || fail "cluster_dog has ended with $status before it was killed"
    for pid in "${workers[@]}"; do
        for ((tries = 0; tries < 2000; tries++)); do
            lives "${pid// /}" || break
            sleep 0.05
        done
        ! lives "${pid// /}" || fail "a worker of cluster_dog outlives its coordinator"
    done
}
