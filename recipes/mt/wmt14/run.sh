#!/usr/bin/env bash
# WMT14 En-De at full size, with the published hyper-parameters:
#
#   recipes/mt/wmt14/run.sh CONFIG DATA-BIN SAVE-DIR [nartk-train's options]
#   recipes/mt/wmt14/run.sh --dry-run [CONFIG ...]
#
# CONFIG is the name of a file beside this one without .sh; each was written for 8 GPUs (on fewer, raise
# --update-freq). DATA-BIN is what nartk-preprocess wrote, from text that you have. --dry-run parses the
# configurations, builds their models at full size on a CPU and takes one step on a few lines.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../../configs.sh
source "$here/../../configs.sh"

usage() { sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
# A configuration sets `kind`, `flags` (of the model and its training) and `batch` (how much in a step).

dry_run() {
  local names=("$@") name number
  [ $# -gt 0 ] || mapfile -t names < <(configs)
  for name in "${names[@]}"; do (load "$name"); done
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  # Reversed number words for a language: enough to step on.
  for number in {1..8}; do
    printf 'one two three four five %s .\n' "$number" >>"$scratch/train.en"
    printf '%s fünf vier drei zwei eins .\n' "$number" >>"$scratch/train.de"
  done
  nartk-preprocess --source-lang en --target-lang de --trainpref "$scratch/train" \
    --validpref "$scratch/train" --joined-dictionary --destdir "$scratch/bin" 2>"$scratch/log" || { cat "$scratch/log" >&2; return 1; }
  for name in "${names[@]}"; do
    load "$name"
    one_step "$name" "$scratch/log" nartk-train "$scratch/bin" --source-lang en --target-lang de \
      --task nartk_translation --arch "nartk_$kind" "${flags[@]}" --max-tokens 200 --log-format simple \
      --save-dir "$scratch/$name"
  done
}

case ${1-} in
  '' | -h | --help) usage; configs | sed 's/^/  /'; exit 0 ;;
  --dry-run) shift; dry_run "$@"; exit ;;
esac
[ $# -ge 3 ] || { usage >&2; exit 2; }
load "$1"
data=$2 save=$3
shift 3
exec nartk-train "$data" --source-lang en --target-lang de --task nartk_translation --arch "nartk_$kind" "${flags[@]}" \
  "${batch[@]}" --save-dir "$save" --save-interval-updates 10000 --keep-interval-updates 10 --log-format simple \
  --log-interval 100 --skip-invalid-size-inputs-valid-test "$@"
