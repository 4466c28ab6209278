#!/usr/bin/env bash
# Fetches the jars of Apache Kafka into .cache/kafka/libs and prints that folder. Quick when they are there.
set -euo pipefail
cd "$(dirname "$0")/.."

LIBS=$PWD/.cache/kafka/libs
STAMP=$LIBS/.complete

if [ ! -e "$STAMP" ] || [ tests/java/pom.xml -nt "$STAMP" ]; then
    command -v mvn >/dev/null || { echo "error: Maven is missing; 'make setup' says how to install it" >&2; exit 1; }
    mvn --quiet --batch-mode --file tests/java/pom.xml dependency:copy-dependencies "-DoutputDirectory=$LIBS" >&2
    touch "$STAMP"
fi
echo "$LIBS"
