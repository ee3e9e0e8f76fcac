#!/usr/bin/env bash
# From raw text to scored corrections, in one go:
#
#   recipes/gec/run.sh [--work DIR] [--quick] [--device cpu|cuda] [--from STAGE] [--updates N] [--jfleg DIR]
#                      [--m2 FILE]
#
# Stages: prepare binarise train finish convert guard decode score. A stage that has finished is not run again;
# --from STAGE runs it and all that follow. Training resumes from its last checkpoint.
#   --quick    a tiny model on 3,000 sentences: every stage for real, in minutes on two cores
#   --updates  updates of training (default 4700, as the shipped model; --quick 300)
#   --jfleg    a folder with JFLEG's dev.src and dev.ref0-3 (your own download: its licence forbids shipping);
#              without it the synthetic validation pairs are decoded and scored
#   --m2       corrected sentences on which the guard is fitted, beside those that ship (ErAConD's for gec-en)
# Needs the extras train and score (README.md, "Train").
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../stages.sh
source "$here/../stages.sh"
work=runs/gec quick= device=cpu from= updates= jfleg= m2=
stages=(prepare binarise train finish convert guard decode score)

usage() { sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case $1 in
    --work) work=$2; shift 2 ;;
    --quick) quick=1; shift ;;
    --device) device=$2; shift 2 ;;
    --from) from=$2; shift 2 ;;
    --updates) updates=$2; shift 2 ;;
    --jfleg) jfleg=$2; shift 2 ;;
    --m2) m2=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown option $1" ;;
  esac
done
require "$from" train,score "${stages[@]}"
mkdir -p "$work/done"

model=(--arch nartk_transformer --d-model 256 --encoder-layers 6 --decoder-layers 2 --encoder-ffn 1024
  --decoder-ffn 1024 --encoder-heads 4 --decoder-heads 4 --max-source-len 256 --max-target-len 256 --dropout 0.05)
batch=(--max-tokens 2048 --update-freq 2) warmup=1000 save=500 keep=5 log=50
if [ -n "$quick" ]; then
  model=(--arch nartk_transformer_tiny --max-source-len 256 --max-target-len 256)
  batch=(--max-tokens 2048) warmup=50 save=50 keep=3 log=10
fi
if [ -z "$updates" ]; then
  updates=4700
  [ -z "$quick" ] || updates=300
fi
part=$((updates * 64 / 100))
train_on "$device"

prepare() {
  python "$here/prepare.py" --output "$work" ${quick:+--quick}
}

binarise() {
  nartk-preprocess --source-lang src --target-lang trg --trainpref "$work/train.spm" \
    --validpref "$work/valid.spm" --destdir "$work/bin" --joined-dictionary --srcdict "$work/dict.txt"
}

# The two parts of training share all but the schedule: first at a rate that falls slowly, then down to
# nothing, where edits count three times as much as copied tokens.
fit() {
  nartk-train "$work/bin" --task translation --source-lang src --target-lang trg "${model[@]}" "${batch[@]}" \
    "${place[@]}" --criterion nartk_cross_entropy --label-smoothing 0.05 --optimizer nartk_adamw \
    --adam-betas '(0.9, 0.98)' --weight-decay 0.01 --clip-norm 1.0 --max-source-positions 256 \
    --max-target-positions 256 --skip-invalid-size-inputs-valid-test --seed 1 --num-workers 0 \
    --save-dir "$work/checkpoints" --save-interval-updates "$save" --keep-interval-updates "$keep" \
    --no-epoch-checkpoints --log-interval "$log" --log-format simple --tensorboard-logdir "$work/tensorboard" "$@"
}

train() {
  fit --lr 0.001 --lr-scheduler inverse_sqrt --warmup-updates "$warmup" --warmup-init-lr 1e-7 \
    --max-update "$part"
}

finish() {
  # fairseq's decay counts from update 0: this rate has come down to about the first part's last one.
  fit --lr 0.0016 --lr-scheduler polynomial_decay --power 1 --warmup-updates 0 --total-num-update "$updates" \
    --max-update "$updates" --edit-weight 3 --reset-lr-scheduler
}

convert() {
  nartk-convert "$work/checkpoints/checkpoint_last.pt" --output "$work/model" --dict "$work/dict.txt" --spm "$work/spm.model" --dtype fp16 \
    --tokenization penn --card "$here/card.md"
}

guard() {
  python "$here/fit_guard.py" "$work/model" ${m2:+--m2 "$m2"} ${quick:+--sentences 60}
}

decode() {
  local source=$work/valid.src
  [ -z "$jfleg" ] || source=$jfleg/dev.src
  resumed "$work/out.txt" nartk-decode "$work/model" "$source" --pretokenized --strategy iad --device "$device" \
    --stats "$work/stats.json"
  if [ -n "$quick" ]; then
    head -n 50 "$source" >"$work/some.src"
    source=$work/some.src
  fi
  nartk-verify "$work/model" "$source" --pretokenized --strategy iad --device "$device"
}

score() {
  local source=$work/valid.src refs=("$work/valid.trg")
  if [ -n "$jfleg" ]; then
    source=$jfleg/dev.src refs=("$jfleg"/dev.ref[0-3])
  fi
  nartk-score gleu "$work/out.txt" --source "$source" --ref "${refs[@]}" --baseline "$source" | tee "$work/scores.txt"
  # ERRANT needs a spaCy pipeline: train_spacy.sh makes one. The run is whole without it.
  nartk-score errant "$work/out.txt" --source "$source" --ref "${refs[@]}" | tee -a "$work/scores.txt" \
    || echo "run.sh: not scored with ERRANT" >&2
}

for stage in "${stages[@]}"; do
  if [ "$stage" = "$from" ]; then
    for later in "${stages[@]}"; do
      [ "$later" = "$from" ] && found=1
      [ -z "${found-}" ] || rm -f "$work/done/$later"
    done
  fi
  if [ -e "$work/done/$stage" ]; then
    echo "== $stage: done before" >&2
    continue
  fi
  echo "== $stage" >&2
  start=$SECONDS
  "$stage"
  touch "$work/done/$stage"
  echo "== $stage: $((SECONDS - start)) s" >&2
done
