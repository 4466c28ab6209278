#!/usr/bin/env bash
# Makes the script that draws the charts of `tidegate report` anew: Vega-Lite, Vega and Vega-Embed in one file, under their licences.
set -euo pipefail
cd "$(dirname "$0")/.."

VL_CONVERT_VERSION=1.9.0.post1
VEGA_LITE_VERSION=6.4
BUNDLE=src/tidegate/pipeline/page/vega.js
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

.venv/bin/python -m venv "$WORK/venv"
"$WORK/venv/bin/pip" install --quiet --disable-pip-version-check "vl-convert-python==$VL_CONVERT_VERSION"
"$WORK/venv/bin/python" -c '
import sys, vl_convert
sys.stdout.write(vl_convert.javascript_bundle(vl_version=sys.argv[1]))' "$VEGA_LITE_VERSION" >"$WORK/bundle.js"
{ echo '/*!' && cat scripts/report-bundle-licences.txt && echo '*/' && cat "$WORK/bundle.js" && echo; } >"$WORK/vega.js"
mv "$WORK/vega.js" "$BUNDLE"
sha256sum "$BUNDLE"
