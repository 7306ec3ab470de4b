#!/usr/bin/env bash
# Builds kube-apiserver v1.35.4 from what the Go proxy has, for KVINDEX_KUBE_APISERVER:
#
#   bash testdata/build-apiserver.sh DIR
#
# k8s.io/kubernetes names its parts as v0.0.0 and replaces them by folders beside it. Here
# they are replaced by what was published of them, v0.35.4. It takes gigabytes of disk and,
# on two cores, a long time. The server needs an etcd beside it, such as that of Debian's
# etcd-server.
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$dir"
export GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0
rm -f go.mod go.sum
go mod init apiserver
kubernetes=$(go mod download -json k8s.io/kubernetes@v1.35.4 | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
go mod edit -require k8s.io/kubernetes@v1.35.4
for part in $(sed -n 's/^\t\(k8s\.io\/[a-z0-9-]*\) => .\/staging\/.*/\1/p' "$kubernetes"); do
    go mod edit -replace "$part=$part@v0.35.4"
done
go build -p 1 -ldflags='-s -w' -o kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
ls -l "$dir/kube-apiserver"
