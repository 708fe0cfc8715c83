#!/usr/bin/env bash
# Completions in the shells themselves: bash and zsh on a terminal, where TAB is typed, and fish by its own question. Each completes a
# command, a volume that the daemon knows, a setting and its value.
. "$(dirname "$0")/lib.sh"
. "$E2E/serve-lib.sh"
need python3 bash zsh fish

mkdir "$T/bin"
ln -s "$FOREBAY" "$T/bin/forebay"
export PATH=$T/bin:$PATH FOREBAY_ADMIN=$ADMIN
truncate -s 1M "$T/database.img" "$T/web.img"
config <<END
[pool.fast]
devices = [{ path = "$T/flash.img", size = "64MiB" }]

[volume.database]
pool = "fast"
backing = "file:$T/database.img"
exports = []

[volume.web]
pool = "fast"
backing = "file:$T/web.img"
exports = []
END
serve

# What is typed, and the line after TAB. Behind `=` no blank comes: a value follows.
cat >"$T/lines" <<'END'
forebay vol|forebay volume 
forebay volume show da|forebay volume show database 
forebay get w|forebay get web 
forebay pool show f|forebay pool show fast 
forebay set database dirty_hi|forebay set database dirty_high_pct=
forebay set database mode=writet|forebay set database mode=writethrough 
forebay set --daemon met|forebay set --daemon metrics_listen=
forebay set --daemon log_level=w|forebay set --daemon log_level=warn 
END
cut -d'|' -f2 "$T/lines" >"$T/expected"
mapfile -t lines < <(cut -d'|' -f1 "$T/lines")
for shell in bash zsh; do
    say "$shell"
    forebay completions "$shell" >"$T/completions.$shell"
    timeout 120 python3 "$E2E/shell_completes.py" "$shell" "$T/completions.$shell" "${lines[@]}" >"$T/$shell.out" || fail "$shell"
    diff "$T/expected" "$T/$shell.out" || fail "$shell completes something else"
done

say "fish"
forebay completions fish >"$T/completions.fish"
for line in "${lines[@]}"; do
    # It prints the word and what it means; which blank follows is its own affair.
    echo "${line% *} $(fish --no-config -c "source $T/completions.fish; complete -C '$line'" | cut -f1)"
done >"$T/fish.out"
sed 's/ *$//' "$T/expected" | diff - "$T/fish.out" || fail "fish completes something else"
unserve
