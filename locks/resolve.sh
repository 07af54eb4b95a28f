#!/usr/bin/env bash
# Resolve every lock from pyproject.toml. All are complete: they are installed with --no-deps.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly BIN="${BIN:-.venv/bin}"

exclude=()
while read -r name; do
  [[ -z "$name" || "$name" == \#* ]] || exclude+=(--no-emit-package "$name")
done < locks/cpu-exclude.txt

# lock NAME EXTRA [options]: one file of exact versions with the hash of every archive.
lock() {
  local name="$1" extra="$2"
  shift 2
  "$BIN/uv" pip compile pyproject.toml --quiet --extra "$extra" --python-version 3.11 --python-platform x86_64-manylinux_2_34 \
    --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-package cake-sglang "$@" \
    --output-file "locks/$name.txt"
}

lock dev-gpu dev
lock dev-cpu dev --constraint locks/dev-gpu.txt "${exclude[@]}"
lock engine-gpu engine --constraint locks/dev-gpu.txt
lock engine-cpu engine --constraint locks/dev-gpu.txt "${exclude[@]}"
lock api api --constraint locks/dev-gpu.txt
