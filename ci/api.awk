# One line for each public item, method and implementation on a page of rustdoc's: `path: declaration`, or `path: impl ... { method }`. `crate` is
# the crate of the pages. `#[non_exhaustive]` stands in the declarations. Left out: blanket implementations, what auto traits come to but for Send
# and Sync, and the methods of traits in their implementations. What the prelude has has its name there and no more.
#
# With `-v examples=1`: the functions, macros, types, traits and methods without an example. A function, macro, type or trait needs an example of
# its own. A method is covered, too, if an example on its page calls it: an example of its type or of another method. What is for authors of
# primitives and engines is covered if an example of its module uses it. An example that must not compile does not count. Not listed, since
# their type's page shows them: variants, fields, and methods of traits.

function text_of(raw) {
    gsub(/&lt;/, "<", raw)
    gsub(/&gt;/, ">", raw)
    gsub(/&quot;/, "\"", raw)
    gsub(/&#39;/, "'", raw)
    gsub(/&nbsp;/, " ", raw)
    gsub(/&amp;/, "\\&", raw)
    gsub(/[ \n\t]+/, " ", raw)
    gsub(/^ | $/, "", raw)
    gsub(/, \)/, ")", raw)
    gsub(/,? \}/, " }", raw)
    gsub(/\( /, "(", raw)
    sub(/,$/, "", raw)
    return raw
}

BEGIN { RS = "<" }

FNR == 1 {
    path = FILENAME
    sub(/\.html$/, "", path)
    # sync/struct.Mutex
    item = path
    sub(/^.*\//, "", item)
    folder = substr(path, 1, length(path) - length(item))
    sub(/^[a-z]+\./, "", item)
    gsub(/\//, "::", folder)
    path = crate "::" folder item
    part = "declaration"
    into = ""
    skipping = ""
    again = path ~ /^forebear::prelude::/
    if (again && !examples) print path
    # The pages whose examples count together.
    page = path ~ /^forebear::(pool::engine|sync::primitive)::|^forebear_cluster::(engine|worker)::/ ? crate "::" folder : path
}

again { next }

{
    tag = $0
    sub(/>.*/, "", tag)
    rest = substr($0, length(tag) + 2)
    if (tag ~ /id="implementations"/) part = "methods"
    else if (tag ~ /id="(trait-implementations|foreign-impls)"/) part = "traits"
    else if (tag ~ /id="synthetic-implementations"/) part = "auto"
    else if (tag ~ /id="(blanket-implementations|deref-methods-|implementors)/) part = "over"
}

part == "over" { next }

# The summary of a fold inside a declaration says how much it hides.
into != "" && tag ~ /^summary/ { skipping = "/summary" }
skipping != "" {
    if (tag == skipping) { skipping = ""; got = got rest }
    next
}

into != "" {
    if (tag == into) {
        got = text_of(got)
        if (examples) {
            current = ""
            if (into == "/pre" && FILENAME ~ /(fn|struct|enum|trait|macro|attr|derive|type|union)\.[^\/]*$/) current = path
            if (into == "/h4" && match(got, /fn [a-z_0-9]+/)) current = path "::" substr(got, RSTART + 3, RLENGTH - 3)
            if (current != "" && !(current in shown)) {
                shown[current] = 0
                page_of[current] = page
            }
        } else if (into == "/pre") print path ": " got
        else if (into == "/h3") {
            header = got
            if (part == "traits" && got !~ /StructuralPartialEq/ || part == "auto" && got ~ /(Send|Sync) for /) print path ": " header
        } else if (part == "methods") print path ": " header " { " got " }"
        into = ""
    } else {
        if (tag ~ /^(div|br|\/div)/) got = got " "
        got = got rest
    }
    next
}

# An example: what it calls and names.
examples && tag ~ /^div class="example-wrap/ { fails = tag ~ /compile_fail|should_panic/ }
examples && tag ~ /^pre class="rust rust-example-rendered"/ && !fails {
    if (current != "") shown[current] = 1
    code = rest
    in_code = 1
    next
}
in_code {
    if (tag != "/pre") { code = code rest; next }
    in_code = 0
    code = text_of(code)
    while (match(code, /[A-Za-z_0-9]+/)) {
        before = substr(code, 1, RSTART - 1)
        name = substr(code, RSTART, RLENGTH)
        code = substr(code, RSTART + RLENGTH)
        if (before ~ /(\.|::)$/ && code ~ /^(\(|::<)/ || before ~ /::$/) called[page, name] = 1
        named[page, name] = 1
    }
    next
}
examples && part == "traits" { current = "" }

tag ~ /^pre class="rust item-decl"/ && part == "declaration" { into = "/pre"; got = rest }
tag ~ /^h3 class="code-header"/ && part != "declaration" { into = "/h3"; got = rest }
tag ~ /^h4 class="code-header"/ && part == "methods" { into = "/h4"; got = rest }

END {
    for (one in shown) {
        if (shown[one]) continue
        name = one
        sub(/^.*::/, "", name)
        is_method = one ~ /::[A-Z][A-Za-z]*::[a-z_0-9]+$/
        if (is_method && (page_of[one], name) in called) continue
        if (page_of[one] ~ /::$/ && (page_of[one], name) in named) continue
        print one
    }
}
