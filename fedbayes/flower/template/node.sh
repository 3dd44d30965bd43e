#!/bin/sh
# One site's node (SuperNode). It ends when the server refuses it, and must be started again: services/ does so.
#
#   ./node.sh SITE DATA SERVER [PORT]
#
# SITE     whose data these are. It stays the same as long as the data do.
# DATA     their file.
# SERVER   host:port
# PORT     of the node's own interface on this machine, for which several nodes on one machine need several.
set -eu
[ $# -ge 3 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")"
umask 077
site=$1 data=$(realpath "$2") server=$3 port=${4:-9094}
export FLWR_HOME="${FLWR_HOME:-$PWD/.flwr}/nodes/$site"
. ./flower.env
mkdir -p "$FLWR_HOME" sites
# Why a server refuses a node, Flower does not say.
fedbayes check-node "$site" --server "$server"
exec fedbayes start-node --superlink "$server" --root-certificates certificates/ca.crt \
    --auth-supernode-private-key "certificates/$site" --host 127.0.0.1 --port "$port" \
    --node-config "site-id=\"$site\" data-path=\"$data\" state-dir=\"$PWD/sites/$site\""
