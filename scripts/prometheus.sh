#!/usr/bin/env bash
# Prints the path of a Prometheus server: the one on PATH, else Debian's, unpacked into .cache/prometheus.
# `make setup` does not install Debian's package, which would start a server on port 9090.
set -euo pipefail
cd "$(dirname "$0")/.."

BINARY=.cache/prometheus/usr/bin/prometheus

if command -v prometheus; then
    exit
fi
if [ ! -x $BINARY ]; then
    command -v apt-get >/dev/null || { echo "error: prometheus is missing; install it from your distribution" >&2; exit 1; }
    mkdir -p .cache/prometheus
    cd .cache/prometheus
    apt-get download prometheus >/dev/null 2>&1 || { apt-get update >/dev/null && apt-get download prometheus >/dev/null; } ||
        { echo "error: prometheus cannot be fetched; 'apt-get update' as root, or install it" >&2; exit 1; }
    dpkg-deb --extract prometheus_*.deb . && rm -f prometheus_*.deb
    cd ../..
fi
echo "$PWD/$BINARY"
