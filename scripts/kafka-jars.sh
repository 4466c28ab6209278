#!/usr/bin/env bash
# Fetches the jars of Apache Kafka into .cache/kafka/libs and prints that folder. Quick when they are there.
# `kafka-jars.sh applications`: those of Kafka Streams, Connect and MirrorMaker, into .cache/kafka/applications.
set -euo pipefail
cd "$(dirname "$0")/.."

LIBS=$PWD/.cache/kafka/${1:-libs}
POM=tests/java/${1:-pom}.xml
STAMP=$LIBS/.complete

if [ ! -e "$STAMP" ] || [ "$POM" -nt "$STAMP" ]; then
    command -v mvn >/dev/null || { echo "error: Maven is missing; 'make setup' says how to install it" >&2; exit 1; }
    mvn --quiet --batch-mode --file "$POM" dependency:copy-dependencies "-DoutputDirectory=$LIBS" >&2
    touch "$STAMP"
fi
echo "$LIBS"
