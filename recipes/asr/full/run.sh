#!/usr/bin/env bash
# AISHELL-1 and LibriSpeech at full size, with the published hyper-parameters:
#
#   recipes/asr/full/run.sh CONFIG DATA SAVE-DIR [nartk-train's options]
#   recipes/asr/full/run.sh --dry-run [CONFIG ...]
#
# CONFIG is the name of a file beside this one without .sh; each was written for one GPU (on several, lower
# --update-freq). DATA is what recipes/asr/prepare.py wrote of the corpus, which you have. --dry-run parses the
# configurations, builds their models at full size on a CPU and takes one step on a few sounds.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../../configs.sh
source "$here/../../configs.sh"

usage() { sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
# A configuration sets `architecture`, `flags` (of the model and its training) and `batch` (how much in a step).

# train DATA OPTIONS...: with those of the configuration, and what all have in common.
train() {
  nartk-train "$1" --task nartk_speech --arch "nartk_$architecture" --criterion nartk_speech "${flags[@]}" \
    --max-source-len 6000 --max-target-len 512 --optimizer nartk_adamw --adam-betas '(0.9, 0.999)' \
    --weight-decay 1e-6 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --log-format simple "${@:2}"
}

dry_run() {
  local names=("$@") name
  [ $# -gt 0 ] || mapfile -t names < <(configs)
  for name in "${names[@]}"; do (load "$name"); done
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  python "$here/../prepare.py" --corpus yesno --quick --output "$scratch/data" 2>"$scratch/log" ||
    { cat "$scratch/log" >&2; return 1; }
  # With features as they are of the large corpora.
  echo '{"name": "audio", "cmvn": "utterance"}' >"$scratch/data/input.json"
  for name in "${names[@]}"; do
    load "$name"
    one_step "$name" "$scratch/log" train "$scratch/data" --max-tokens 800 --save-dir "$scratch/$name"
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
train "$data" "${batch[@]}" --autocast bf16 --save-dir "$save" --keep-best-checkpoints 10 --log-interval 100 \
  --skip-invalid-size-inputs-valid-test "$@"
