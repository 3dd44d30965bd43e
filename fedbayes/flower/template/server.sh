#!/bin/sh
# Flower's server (SuperLink), for this machine alone; nginx shows the sites their part of it (services/nginx.conf).
#
#   ./server.sh [PORT]
set -eu
cd "$(dirname "$0")"
umask 077
. ./flower.env
mkdir -p server
# Its interface for starting runs has no login: whoever reaches it chooses what code the sites run. Leave it at 127.0.0.1.
exec flower-superlink --host 127.0.0.1 --port "${1:-8000}" \
    --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.pem --ssl-keyfile certificates/server.key \
    --enable-supernode-auth --disable-runtime-dependency-installation --database server/state.db
