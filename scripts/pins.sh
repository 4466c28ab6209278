#!/usr/bin/env bash
# Makes constraints/*.txt anew: every version that is installed, with the hashes of all its files, for every platform.
# Versions stay as they are unless the arguments say otherwise (--upgrade, --upgrade-package NAME).
set -euo pipefail
cd "$(dirname "$0")/.."

UV_VERSION=0.13.9
OLDEST_PYTHON=3.11 # of pyproject.toml
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

# The index is the one that pip is set up with; its address is written nowhere.
index=$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)
index=${PIP_INDEX_URL:-$index}
[ -z "$index" ] || export UV_DEFAULT_INDEX=$index
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=$PIP_CERT

.venv/bin/python -m venv "$WORK/venv"
"$WORK/venv/bin/pip" install --quiet --disable-pip-version-check "uv==$UV_VERSION"

# compile FILE ARGUMENTS: resolve what the arguments name, keeping the versions of constraints/FILE.
compile() {
    local file=$1
    shift
    cp "constraints/$file" "$WORK/$file"
    "$WORK/venv/bin/uv" pip compile --quiet --no-config --universal --python-version "$OLDEST_PYTHON" --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links --output-file "$WORK/$file" "$@" >/dev/null
    mv "$WORK/$file" "constraints/$file"
}

printf '%s\n' pip setuptools wheel >"$WORK/build.in"
compile build.txt "$@" "$WORK/build.in"
compile python.txt "$@" --extra pipeline --extra connect --extra clients --group dev pyproject.toml
