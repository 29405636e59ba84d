#!/usr/bin/env bash
# Sets up everything that `make demo` (build) or `make test` (test) needs; quick where nothing changed.
# As root, missing Debian packages are installed; otherwise they are listed and, where the build needs them, we stop.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?usage: tools/setup.sh build|test}
python=${PYTHON:-python3}

say() { if [ -t 1 ]; then printf '\033[1m==> %s\033[0m\n' "$*"; else printf '==> %s\n' "$*"; fi; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

missing_packages() { # class...
  local class package
  while read -r class package; do
    case " $* " in *" $class "*) ;; *) continue ;; esac
    dpkg-query -W -f='${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed$' || echo "$package"
  done < <(grep -v '^#' tools/debian_packages.txt)
}

debian() {
  command -v dpkg-query >/dev/null || { say "not a Debian system: see tools/debian_packages.txt for what is needed"; return; }
  local classes=build missing
  [ "$what" = test ] && classes="build test"
  # A Python that brings its own headers and venv (pyenv, a container image) does not need Debian's.
  mapfile -t missing < <(missing_packages $classes | if python_is_complete; then grep -vxE 'python3-(dev|venv)'; else cat; fi)
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" = 0 ]; then
    say "installing Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    return
  fi
  printf 'setup: not root, and these Debian packages are missing:\n' >&2
  printf '  %s\n' "${missing[@]}" >&2
  printf 'install them with:  sudo apt-get install %s\n' "${missing[*]}" >&2
  mapfile -t missing < <(missing_packages build | if python_is_complete; then grep -vxE 'python3-(dev|venv)'; else cat; fi)
  [ ${#missing[@]} -eq 0 ] || exit 1
  printf 'setup: the build can go on without them; tests that need them are skipped and say so\n' >&2
}

python_is_complete() {
  "$python" - 2>/dev/null <<'P'
import ensurepip, os, sysconfig, venv
raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
P
}

# Runs a command whose output matters only when it fails.
quietly() { # log command...
  local log=$1; shift
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; die "failed: $* (all of it in $log)"; }
}

virtual_environment() {
  "$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null ||
    die "$python is missing or older than 3.11; set PYTHON=/path/to/python3.11"
  [ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null || { say "making .venv"; rm -rf .venv; "$python" -m venv .venv; }
  local wanted
  wanted=$(cat pyproject.toml constraints.txt | sha256sum)
  if [ "$(cat .venv/duckfleet-dependencies 2>/dev/null)" != "$wanted" ]; then
    say "installing Python dependencies into .venv (several minutes the first time)"
    .venv/bin/python tools/dependencies.py >.venv/requirements.txt
    quietly .venv/pip.log .venv/bin/python -m pip install --disable-pip-version-check --no-input -c constraints.txt -r .venv/requirements.txt
    echo "$wanted" >.venv/duckfleet-dependencies
  fi
}

install_ourselves() {
  local wanted
  wanted=$(.venv/bin/python tools/source_digest.py)
  [ "$(cat .venv/duckfleet-installed 2>/dev/null)" = "$wanted" ] && return
  say "building and installing duckfleet into .venv"
  quietly .venv/build.log .venv/bin/python -m pip install --disable-pip-version-check --no-input --no-deps --no-build-isolation --force-reinstall .
  echo "$wanted" >.venv/duckfleet-installed
}

# One set-up at a time in a clone: two `make` at once would fight over .venv.
exec 9>.setup.lock
flock -n 9 || { say "another set-up is running in this clone, waiting for it"; flock 9; }
debian
virtual_environment
install_ourselves
