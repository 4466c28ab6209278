#!/usr/bin/env bash
# Fetches Kafka Streams, Kafka Connect and Apicurio Registry into .cache/apps and prints that folder. Quick when they are there.
set -euo pipefail
cd "$(dirname "$0")/.."

APPS=$PWD/.cache/apps
STAMP=$APPS/.complete
POM=tests/java/apps/pom.xml
REGISTRY=io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all

if [ ! -e "$STAMP" ] || [ "$POM" -nt "$STAMP" ] || [ "$0" -nt "$STAMP" ]; then
    command -v mvn >/dev/null || { echo "error: Maven is missing; 'make setup' says how to install it" >&2; exit 1; }
    mvn --quiet --batch-mode --file "$POM" dependency:copy-dependencies "-DoutputDirectory=$APPS/libs" >&2
    mvn --quiet --batch-mode dependency:copy "-Dartifact=$REGISTRY" "-DoutputDirectory=$APPS" >&2
    mkdir -p "$APPS/registry"
    tar -xzf "$APPS"/apicurio-registry-app-*-all.tar.gz -C "$APPS/registry"
    rm "$APPS"/apicurio-registry-app-*-all.tar.gz
    touch "$STAMP"
fi
echo "$APPS"
