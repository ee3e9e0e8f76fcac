# Sourced by the scripts that train published configurations on sound, each a file beside them that sets
# `architecture`, `flags` (of the model and its training) and `batch` (how much in a step).
# shellcheck shell=bash
#
# It reads of the script: here, its folder; usage; and dry_data, which writes the data of a dry run to a folder.

# shellcheck source=configs.sh
source "$here/../../configs.sh"

# train DATA OPTIONS...: with those of the configuration, and what all have in common.
train() {
  nartk-train "$1" --task nartk_speech --arch "nartk_$architecture" --criterion nartk_speech --weight-decay 1e-6 \
    --max-source-len 6000 --max-target-len 512 --optimizer nartk_adamw --adam-betas '(0.9, 0.999)' \
    --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --log-format simple "${flags[@]}" "${@:2}"
}

dry_run() {
  local names=("$@") name
  [ $# -gt 0 ] || mapfile -t names < <(configs)
  for name in "${names[@]}"; do (load "$name"); done
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  dry_data "$scratch" 2>"$scratch/log" || { cat "$scratch/log" >&2; return 1; }
  # With features as they are of the large corpora.
  echo '{"name": "audio", "cmvn": "utterance"}' >"$scratch/data/input.json"
  for name in "${names[@]}"; do
    load "$name"
    one_step "$name" "$scratch/log" train "$scratch/data" --max-tokens 800 --save-dir "$scratch/$name"
  done
}

# published ARGUMENTS...: the command.
published() {
  case ${1-} in
    '' | -h | --help) usage; configs | sed 's/^/  /'; exit 0 ;;
    --dry-run) shift; dry_run "$@"; exit ;;
  esac
  [ $# -ge 3 ] || { usage >&2; exit 2; }
  load "$1"
  local data=$2 save=$3
  shift 3
  train "$data" "${batch[@]}" --autocast bf16 --save-dir "$save" --keep-best-checkpoints 10 --log-interval 100 \
    --skip-invalid-size-inputs-valid-test "$@"
}
