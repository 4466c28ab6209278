#!/usr/bin/env bash
# Makes .venv with the pinned dependencies and sees to the system's tools. Quick when nothing has changed.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
PINS=constraints/python.txt
BUILD_PINS=constraints/build.txt
STAMP=$VENV/.tidegate-setup
TOOLS_STAMP=$VENV/.tidegate-tools
JAVA_RELEASE_MIN=17 # what Spark 4 runs on

say() { printf 'setup: %s\n' "$*" >&2; }

fail() {
    printf 'error: %s\n' "$1" >&2
    [ -z "${2:-}" ] || printf 'hint: %s\n' "$2" >&2
    exit 1
}

is_root_on_debian() { [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; }

# What the virtual environment was made from: it is made again when any of these changes.
fingerprint() { { pwd; cat pyproject.toml "$PINS" "$BUILD_PINS" scripts/setup.sh; } | cksum; }

python_is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if python_is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer found (python3 is $(python3 -V 2>&1 || echo missing))" \
        "install one, or name it: PYTHON=/path/to/python3.11 make setup"
}

make_venv() {
    local python
    python=$(find_python)
    say "making $VENV with $("$python" -V)"
    "$python" -m venv --clear "$VENV" && return
    is_root_on_debian || fail "$python cannot make a virtual environment" \
        "on Debian and Ubuntu: sudo apt-get install -y python3-venv"
    apt_install python3-venv
    "$python" -m venv --clear "$VENV"
}

pip_install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

install_packages() {
    if ! python_is_new_enough "$VENV/bin/python" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        make_venv
    fi
    say "installing the packages of $PINS"
    pip_install --require-hashes --requirement "$BUILD_PINS"
    pip_install --require-hashes --no-build-isolation --requirement "$PINS" # builds with what was just installed
    pip_install --no-deps --no-build-isolation --editable .
    fingerprint >"$STAMP"
}

apt_install() {
    say "installing $* (apt-get)"
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 && return
    apt-get update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >/dev/null
}

java_release() { java -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p'; }

java_is_new_enough() {
    command -v java >/dev/null || return 1
    [ "$(java_release)" -ge "$JAVA_RELEASE_MIN" ] 2>/dev/null && java --list-modules | grep '^jdk.compiler' >/dev/null # tests compile
}

# Debian's names of the packages that are missing.
missing_tools() {
    java_is_new_enough || echo default-jdk-headless
    command -v mvn >/dev/null || echo maven
    command -v kcat >/dev/null || echo kcat
    command -v chromium >/dev/null || command -v google-chrome >/dev/null || echo chromium
}

# The one command that installs the Debian packages named, on this system.
install_command() {
    if command -v apt-get >/dev/null; then
        echo "sudo apt-get install -y $*"
    elif command -v brew >/dev/null; then
        echo "brew install $*" | sed 's/default-jdk-headless/openjdk@21/'
    elif command -v dnf >/dev/null; then
        echo "sudo dnf install -y $*" | sed 's/default-jdk-headless/java-21-openjdk-devel/'
    else
        echo "install $*" | sed "s/default-jdk-headless/Java $JAVA_RELEASE_MIN or newer/"
    fi
}

see_to_tools() {
    local missing
    missing=$(missing_tools | xargs)
    if [ -n "$missing" ] && is_root_on_debian; then
        # shellcheck disable=SC2086 # one word a package
        apt_install $missing || true
        missing=$(missing_tools | xargs)
    fi
    if [ -z "$missing" ]; then
        touch "$TOOLS_STAMP"
        return
    fi
    say "missing: $missing (Java is needed by the Spark jobs, the others only by the tests)"
    say "this command installs it: $(install_command "$missing")"
}

if [ ! -x $VENV/bin/tidegate ] || [ ! -e $STAMP ] || [ "$(fingerprint)" != "$(cat $STAMP)" ]; then
    install_packages
fi
[ $TOOLS_STAMP -nt scripts/setup.sh ] || see_to_tools # it says which tools
