# Sourced by the sanitizer lanes. A lane is trusted only if it has just found a bug that was put there.

# canary TEST-FILE TEST-NAME REPORT: builds tests/TEST-FILE.rs with --cfg canary (that file alone; everything else is
# what the suite uses), runs one test of it, and demands that it fail with a line that matches REPORT, so that the
# report of something else is not taken for this one. The lane's array `face` has the flags of cargo for the package `forebear`.
canary() {
    local file=$1 name=$2 report=$3 dir=$CARGO_TARGET_DIR/canary status=0 binary
    mkdir -p "$dir"
    run cargo rustc -p forebear --test "$file" "${face[@]}" --message-format=json-render-diagnostics -- --cfg canary \
        >"$dir/$file.json"
    binary=$(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$dir/$file.json" | tail -n 1)
    [[ -n $binary ]] || fail "canary $file: no binary was built"
    timeout --kill-after=10 120 "$binary" --exact "$name" --nocapture >"$dir/$name.log" 2>&1 || status=$?
    if ! grep -q '^running 1 test$' "$dir/$name.log"; then
        fail "canary $name: no such test in $file"
    elif ((status == 0)); then
        fail "canary $name: the planted bug was not found"
    elif ! grep -qE "$report" "$dir/$name.log"; then
        cat "$dir/$name.log" >&2
        fail "canary $name: failed, but without '$report'"
    fi
    echo "canary $name: found, as it must be"
}
