# What every script here shares. Sourced, never run: `. "$(dirname "$0")/lib.bash"` right after `set -euo pipefail`.
# It goes to the root of the checkout, so that a script may be started from anywhere.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Every feature that links in an ordinary build. `sanitizer` is not among them: it calls into AddressSanitizer's
# runtime, so `--all-features` cannot link and only ci/asan turns it on. Cargo refuses a feature that no selected package
# has: FEATURES is for commands that select all default members, FACE_FEATURES for those that name `forebear`.
FACE_FEATURES=blocking,local-timers,tokio,tracing
FEATURES=$FACE_FEATURES,safetensors

# The machine we build for. Lanes that pass RUSTFLAGS name it as --target, so that build scripts and procedural macros
# are compiled without those flags.
HOST=$(rustc -vV | sed -n 's/^host: //p')

# The test programs of `forebear` that race most: ci/flakes repeats them most.
RACING=(
    callbacks cancel cancel_demand cancel_foreign cancel_spread cancel_storm channel channel_go condvar cycles deadlines
    failure_and_cancel foreign join lock_stress mutex once order order_workers request_pool rw_lock scope select semaphore shutdown
    stress timeouts urgency workers yields
)

# The programs that ci/test runs without debug assertions as well: those with tests that debug assertions leave out or make
# smaller, which ci/tidy checks, and those whose stacks, memory and exits the optimiser changes. Each takes some ten
# seconds to compile; ci/flakes runs all of RACING optimised.
OPTIMISED=(
    builder cancel_storm cycles death declared defects depth direct exits lock_stress memory memory_limits park raids shutdown stress
)

# A lane that cannot run says why and ends with 77; `.ci/run` then lists it by name. It never counts as passed.
skip() {
    echo "SKIPPED: $*"
    exit 77
}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# Shows each command before it runs, in a form that can be pasted into a shell.
run() {
    echo "+ $*" >&2
    "$@"
}

# The sum of the passed tests in a log of cargo test. A lane in which nothing ran has proved nothing, so callers check it.
passed_in() {
    sed -n 's/^test result: .* \([0-9][0-9]*\) passed.*/\1/p' "$1" | awk '{ n += $1 } END { print n + 0 }'
}
