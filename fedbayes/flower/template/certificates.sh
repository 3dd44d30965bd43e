#!/bin/sh
# Certificates and keys, all below ./certificates.
#
#   ./certificates.sh server HOST [PORT]  at the server: an authority, a certificate for HOST (a name or an address), and
#                                         the connection for `flwr run . server`. ca.crt goes to the sites.
#   ./certificates.sh node SITE           at a site: its key pair. SITE.pub goes to the server; SITE stays where it is.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p certificates

usage() {
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

refuse_existing() {
    if [ -e "$1" ]; then
        echo "$1 is there already; remove it first if you want a new one." >&2
        exit 1
    fi
}

server() {
    host=$1 port=${2:-8000}
    refuse_existing certificates/ca.key
    case $host in
        *[!0-9.]*) names="DNS:$host,DNS:localhost,IP:127.0.0.1" ;;
        *) names="IP:$host,DNS:localhost,IP:127.0.0.1" ;;
    esac
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -sha384 -days 3650 \
        -subj "/CN=$host authority" -addext "basicConstraints=critical,CA:TRUE" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout certificates/ca.key -out certificates/ca.crt 2>/dev/null
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -sha384 \
        -subj "/CN=$host" -keyout certificates/server.key -out certificates/server.csr 2>/dev/null
    printf '%s\n' "subjectAltName=$names" "basicConstraints=critical,CA:FALSE" "extendedKeyUsage=serverAuth" \
        "authorityKeyIdentifier=keyid" "subjectKeyIdentifier=hash" >certificates/server.ext
    openssl x509 -req -in certificates/server.csr -CA certificates/ca.crt -CAkey certificates/ca.key -CAcreateserial \
        -days 825 -sha384 -extfile certificates/server.ext -out certificates/server.pem 2>/dev/null
    rm -f certificates/server.csr certificates/server.ext
    . ./flower.env
    mkdir -p "$FLWR_HOME"
    refuse_existing "$FLWR_HOME/config.toml"
    printf '[superlink.server]\naddress = "127.0.0.1:%s"\nroot-certificates = "%s"\n' \
        "$port" "$PWD/certificates/ca.crt" >"$FLWR_HOME/config.toml"
    echo "Give certificates/ca.crt to every site. Keep certificates/ca.key and server.key to yourself."
}

node() {
    refuse_existing "certificates/$1"
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$1" -f "certificates/$1"
    echo "Give certificates/$1.pub to the server. Keep certificates/$1 to yourself."
}

case ${1:-} in
    server) [ $# -ge 2 ] || usage; server "$2" "${3:-}" ;;
    node) [ $# -eq 2 ] || usage; node "$2" ;;
    *) usage ;;
esac
