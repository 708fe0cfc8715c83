# shellcheck shell=bash
# Certificates for tests; sourced after lib.sh. The names of the files are those that libnbd and QEMU look for.
#
#   authority DIR            makes an authority: DIR/ca-cert.pem, DIR/ca-key.pem
#   certificate CA KIND CN [SAN...]   KIND-cert.pem and KIND-key.pem (server or client) and ca-cert.pem in $PKI/CN

PKI=$T/pki

# openssl as the tests use it: quiet, and its words are shown if it fails.
ssl() {
    openssl "$@" 2>"$T/openssl.err" || {
        cat "$T/openssl.err"
        fail "openssl $1"
    }
}

authority() {
    mkdir -p "$1"
    ssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=test authority ${1##*/}" \
        -addext basicConstraints=critical,CA:TRUE -keyout "$1/ca-key.pem" -out "$1/ca-cert.pem"
}

certificate() {
    local ca=$1 kind=$2 name=$3 folder=$PKI/$3
    shift 3
    local names="" san
    for san in "$@"; do names="$names${names:+,}$san"; done
    mkdir -p "$folder"
    ssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" \
        -keyout "$folder/$kind-key.pem" -out "$folder/request.pem"
    chmod 600 "$folder/$kind-key.pem"
    {
        echo "extendedKeyUsage=${kind}Auth"
        if [ -n "$names" ]; then echo "subjectAltName=$names"; fi
    } >"$folder/extensions"
    ssl x509 -req -in "$folder/request.pem" -CA "$ca/ca-cert.pem" -CAkey "$ca/ca-key.pem" -CAcreateserial -days 2 \
        -extfile "$folder/extensions" -out "$folder/$kind-cert.pem"
    cp "$ca/ca-cert.pem" "$folder/ca-cert.pem"
}

# no_secrets FILE...: nothing of a key or token that was made here is in these files.
no_secrets() {
    local secret line
    for secret in "$PKI"/*/*-key.pem "$T"/*token*; do
        [ -e "$secret" ] || continue
        while read -r line; do
            case $line in -----* | '') continue ;; esac
            if grep -aFq -- "${line:0:24}" "$@"; then fail "a part of $secret is in one of: $*"; fi
        done <"$secret"
    done
}
