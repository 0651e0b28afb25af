#!/usr/bin/env bash
# Writes package batonv1 from proto/, with protoc (Debian: protobuf-compiler) and the two plugins at the
# versions of go.mod. Not committed: what can be made is not kept.
set -euo pipefail
cd "$(dirname "$0")"
root=$(realpath ../..)
package=baton.example/client/batonv1

plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
GOBIN=$plugins go install google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc

files=(proto/baton/v1/common.proto proto/baton/v1/inference.proto)
arguments=()
for file in "${files[@]}"; do
  arguments+=("--go_opt=M$file=$package" "--go-grpc_opt=M$file=$package")
done
PATH=$plugins:$PATH protoc -I"$root" --go_out=. --go_opt=module=baton.example/client \
  --go-grpc_out=. --go-grpc_opt=module=baton.example/client "${arguments[@]}" "${files[@]}"
