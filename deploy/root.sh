#!/bin/sh
# Lays out the root of an image:
#
#   sh deploy/root.sh ./cmd/kvindexd DIR
#   sh deploy/root.sh ./epp/cmd/kvindex-epp DIR
#   sh deploy/root.sh ./offload/cmd/kvoffload DIR
#
# TAGS, GOOS and GOARCH are as for go build. The same sources, the same Go and the same
# /etc/ssl/certs/ca-certificates.crt give the same bytes, wherever the sources are.
set -eu
cd "$(dirname "$0")/.."
umask 022
mkdir -p "$2/etc/ssl/certs"
GOFLAGS='' CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-s -w -buildid=' -tags "${TAGS:-}" -o "$2/${1##*/}" "$1"
cp /etc/ssl/certs/ca-certificates.crt "$2/etc/ssl/certs/"
echo 'kvindex:x:65532:65532:kvindex:/:' >"$2/etc/passwd"
echo 'kvindex:x:65532:' >"$2/etc/group"
find "$2" -exec touch -d @0 {} +
