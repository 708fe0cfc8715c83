#!/usr/bin/env bash
# The example of docs/operate/security.md, as it is pasted: mutual TLS from end to end, and plaintext refused.
. "$(dirname "$0")/lib.sh"
need openssl nbdinfo qemu-io

sed -n '/tests\/e2e\/security-page.sh runs/,/^```$/p' "$ROOT/docs/operate/security.md" | sed '1,2d;$d' >"$T/page.sh"
grep -q 'tls-creds-x509' "$T/page.sh" || fail "the example was not found in docs/operate/security.md"
PORT=$(free_port)
sed -i "s/10899/$PORT/g" "$T/page.sh"
mkdir "$T/bin" "$T/paste"
ln -s "$FOREBAY" "$T/bin/forebay"
cd "$T/paste"
PATH=$T/bin:$PATH timeout 60 bash "$T/page.sh" >"$T/page.out" 2>&1 || { cat "$T/page.out"; fail "the example does not work"; }
grep -q 'with TLS' "$T/page.out" || { cat "$T/page.out"; fail "no TLS in the example"; }
grep -q 'read 1048576/1048576 bytes' "$T/page.out" || { cat "$T/page.out"; fail "QEMU has not read"; }
