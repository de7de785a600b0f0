# The safe public functions that have to do with raw pointers, one a line: `crate Type::name` (or `crate module::name`), sorted by
# nobody. Read twice: `awk -v handles="TYPES" -f ci/raw-pointers.awk FILES FILES`. The first reading finds the public types with a raw
# pointer in them (a field or a variant: `*const`, `*mut`, `NonNull`, `AtomicPtr`, or another such type), but for the TYPES; the second finds each function that is public and not `unsafe`, and
#
# * whose signature names a raw pointer or such a type, or
# * that is a method or a constructor of such a type.
#
# Methods of a public trait count as public; those of an `impl Trait for` do not, since the trait declares them. It reads text, laid out
# by rustfmt: items begin in the first column, methods in the fifth. It stops at a file's tests. It does not see what a macro makes.

function words(text) { return " " text " " }
function has_word(text, word) { return words(text) ~ ("[^A-Za-z0-9_]" word "[^A-Za-z0-9_]") }
function is_raw(text) { return text ~ /\*const |\*mut |NonNull<|AtomicPtr</ }
# `timer` uses none of these types, and has one of a like name.
function names_a_type(text,    type) {
    if (crate == "timer") return 0
    for (type in raw) if (has_word(text, type)) return 1
    return 0
}
# The name of the type that an `impl` is for: behind the generics, without a path.
function of_impl(text,    depth, i, c) {
    sub(/^(unsafe )?impl */, "", text)
    if (text ~ /^</) {
        for (i = 1; i <= length(text); i++) {
            c = substr(text, i, 1)
            if (c == "<") depth++
            if (c == ">" && substr(text, i - 1, 1) != "-" && --depth == 0) break
        }
        text = substr(text, i + 1)
    }
    is_trait_impl = text ~ / for /
    sub(/.* for /, "", text)
    sub(/^ */, "", text)
    sub(/^&('[a-z_]+ )?(mut )?/, "", text)
    sub(/[^A-Za-z0-9_:].*/, "", text)
    sub(/.*::/, "", text)
    return text
}
function judge(text,    name, key) {
    name = text
    sub(/.*fn /, "", name)
    sub(/[^A-Za-z0-9_].*/, "", name)
    if (text ~ /(^| )unsafe /) return
    if (!(is_raw(text) || names_a_type(text) || owner in raw)) return
    key = crate " " (owner == "" ? module : owner) "::" name
    if (!(key in told)) print key
    told[key] = 1
}

# Whoever contains such a type is one.
function close_over(    item, grows) {
    do {
        grows = 0
        for (item in bodies) if (!(item in raw) && names_a_type(bodies[item])) grows = raw[item] = 1
    } while (grows)
}

BEGIN {
    count = split(handles, list, " ")
    for (i = 1; i <= count; i++) handle[list[i]] = 1
}

FNR == 1 {
    readings[FILENAME]++
    crate = FILENAME
    sub(/\/.*/, "", crate)
    if (!second && readings[FILENAME] == 2) {
        second = 1
        close_over()
    }
    module = FILENAME
    sub(/\/mod\.rs$/, "", module)
    sub(/\.rs$/, "", module)
    sub(/.*\//, "", module)
    owner = item = signature = header = ""
    in_trait = is_trait_impl = over = 0
}
/^#\[cfg\((all\()?test/ { over = 1 }
over { next }
{ sub(/ *\/\/.*/, "") }

# Types, in the first reading.
!second && /^pub (struct|enum|union|type) / {
    item = $3
    sub(/[^A-Za-z0-9_].*/, "", item)
    body = ""
}
!second && item != "" {
    line = $0
    gsub(/PhantomData<.*>/, "", line)
    # A variant may have a type's name.
    sub(/^    [A-Z][A-Za-z]*( = .*)?,$/, "", line)
    body = body " " line
    if ($0 ~ /^}/ || $0 ~ /;$/ && body !~ /\{/ || $0 ~ /^pub .*}$/) {
        if (!(item in handle) && crate != "timer") {
            bodies[item] = body
            if (is_raw(body)) raw[item] = 1
        }
        item = ""
    }
}

# Functions, in the second.
second && /^(unsafe )?impl[ <]/ { header = $0; in_impl = 1; if ($0 !~ /[{;]$/) reading_header = 1; owner = of_impl(header); next }
second && reading_header {
    header = header " " $0
    if ($0 ~ /[{;]$/) { reading_header = 0 }
    owner = of_impl(header)
    next
}
second && /^pub (unsafe )?trait / {
    in_trait = 1
    owner = $0
    sub(/.*trait /, "", owner)
    sub(/[^A-Za-z0-9_].*/, "", owner)
}
second && /^}/ { owner = ""; in_trait = is_trait_impl = 0 }
second && signature == "" && (/^ *pub (const )?(unsafe )?(extern "C" )?fn / && !is_trait_impl || in_trait && /^    (const )?(unsafe )?fn /) {
    signature = $0
    if ($0 !~ /[{;}]$/) next
}
second && signature != "" {
    if (signature != $0) signature = signature " " $0
    if ($0 ~ /[{;}]$/) {
        judge(signature)
        signature = ""
    }
}
