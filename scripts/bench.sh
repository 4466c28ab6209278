#!/usr/bin/env bash
# Runs the benchmarks one after the other and prints each one's command above its numbers; fails where one does.
set -euo pipefail
cd "$(dirname "$0")/.."

model=$(sed -nE 's/^model name\s*: //p' /proc/cpuinfo 2>/dev/null | head -n 1 || true)
printf 'machine: %s, %s cores, %s, %s\n' "${model:-$(uname -m)}" "$(getconf _NPROCESSORS_ONLN)" \
    "$(uname -sr)" "$(.venv/bin/python -V)"
failed=0
for script in bench/bench_*.py; do
    printf '\n$ python %s\n' "$script"
    .venv/bin/python "$script" || failed=1
done
exit "$failed"
