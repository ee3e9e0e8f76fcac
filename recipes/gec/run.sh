#!/usr/bin/env bash
# From raw text to scored corrections, in one go:
#
#   recipes/gec/run.sh [--work DIR] [--quick] [--size small|medium] [--device cpu|cuda] [--processes N]
#                      [--from STAGE] [--updates N] [--text FILE]... [--real DIR] [--jfleg DIR] [--m2 FILE]
#                      [--frequencies FILE]
#
# Stages: prepare binarise noise edits finish convert guard int8 decode score. A stage that has finished is not run
# again; --from STAGE runs it and all that follow. Training resumes from its last checkpoint.
#   --quick      a tiny model on 3,000 sentences: every stage for real, in minutes on two cores
#   --size       small (d_model 256, 7.9 M parameters) or medium (default; d_model 384, 16 M)
#   --processes  that train together (default 1)
#   --updates    of the three parts of training together (default 6000, --quick 300)
#   --text       more clean text, a tokenised sentence a line (README.md: what gec-en has read)
#   --real       pairs of real errors, of real_pairs.py; without it the second part is left out, and the third one
#                has noise alone
#   --jfleg      a folder with JFLEG's dev.src and dev.ref0-3 (your own download: its licence forbids shipping);
#                without it the synthetic validation pairs are decoded and scored
#   --m2         corrected sentences on which the guard is fitted, beside those that ship
#   --frequencies  words and their counts, for a speller (fit_speller.py): SymSpell's English list; without it the
#                guard has none
# Needs the extras train and score (README.md, "Train").
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../stages.sh
source "$here/../stages.sh"
work=runs/gec quick= size=medium device=cpu processes=1 from= updates= text=() real= jfleg= m2= frequencies=
stages=(prepare binarise noise edits finish convert guard int8 decode score)

usage() { sed -n '2,24s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case $1 in
    --work) work=$2; shift 2 ;;
    --quick) quick=1; shift ;;
    --size) size=$2; shift 2 ;;
    --device) device=$2; shift 2 ;;
    --processes) processes=$2; shift 2 ;;
    --from) from=$2; shift 2 ;;
    --updates) updates=$2; shift 2 ;;
    --text) text+=("$2"); shift 2 ;;
    --real) real=$2; shift 2 ;;
    --jfleg) jfleg=$2; shift 2 ;;
    --m2) m2=$2; shift 2 ;;
    --frequencies) frequencies=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown option $1" ;;
  esac
done
require "$from" train,score "${stages[@]}"
mkdir -p "$work/done"

case $size in
  small) width=256 heads=4 ;;
  medium) width=384 heads=6 ;;
  *) die "no size '$size': choose from small, medium" ;;
esac
model=(--arch nartk_transformer --d-model $width --encoder-layers 6 --decoder-layers 2 --encoder-ffn $((4 * width))
  --decoder-ffn $((4 * width)) --encoder-heads $heads --decoder-heads $heads --max-source-len 256
  --max-target-len 256 --dropout 0)
# Tokens of a batch: 8,192, whatever the device and the number of processes.
batch=(--max-tokens 2048 --update-freq $((processes < 4 ? 4 / processes : 1))) rate=0.004 warmup=300 save=250 log=25 ends=8
[ "$device" = cpu ] || batch=(--max-tokens 8192)
if [ -n "$quick" ]; then
  model=(--arch nartk_transformer_tiny --max-source-len 256 --max-target-len 256)
  batch=(--max-tokens 2048) warmup=50 save=50 log=10 ends=2
fi
if [ -z "$updates" ]; then
  updates=6000
  [ -z "$quick" ] || updates=300
fi
train_on "$device"

# Three sets with the same pieces: noise; noise and real errors; few sentences, real errors, and 30 % that are
# right.
prepare() {
  local data=() copies=()
  [ -z "$quick" ] || data=(--quick)
  [ -n "$quick" ] || copies=(--copies 2)
  [ ${#text[@]} = 0 ] || data+=(--text "${text[@]}")
  python "$here/prepare.py" --output "$work/noise" "${data[@]}" "${copies[@]}" --jobs "$processes"
  data+=(--pieces "$work/noise" --copies 1 ${real:+--real "$real" --real-times 4})
  [ -z "$real" ] || python "$here/prepare.py" --output "$work/edits" "${data[@]}" --seed 2
  python "$here/prepare.py" --output "$work/finish" "${data[@]}" --seed 5 --sentences 90000 --clean-share 0.3 \
    ${real:+--real-times 6}
}

binarise() {
  local set
  for set in noise edits finish; do
    [ -d "$work/$set" ] || continue
    nartk-preprocess --source-lang src --target-lang trg --trainpref "$work/$set/train.spm" \
      --validpref "$work/$set/valid.spm" --destdir "$work/$set/bin" --joined-dictionary \
      --srcdict "$work/noise/dict.txt" --workers "$processes"
  done
}

# fit SET FLAGS...: trains on a set; --finetune-from-model counts only where no checkpoint of its own is there.
fit() {
  local set=$1 command=(nartk-train)
  shift
  [ "$processes" = 1 ] || command=(torchrun --nproc-per-node "$processes" -m nartk train)
  "${command[@]}" "$work/$set/bin" --task translation --source-lang src --target-lang trg "${model[@]}" "${batch[@]}" \
    "${place[@]}" --criterion nartk_cross_entropy --label-smoothing 0.05 --optimizer nartk_muon \
    --adam-betas '(0.9, 0.98)' --weight-decay 0.01 --clip-norm 1.0 --max-source-positions 256 \
    --max-target-positions 256 --skip-invalid-size-inputs-valid-test --seed 1 --num-workers 0 \
    --save-dir "$work/$set/checkpoints" --save-interval-updates "$save" --keep-interval-updates 2 \
    --no-epoch-checkpoints --log-interval "$log" --log-format simple --tensorboard-logdir "$work/tensorboard/$set" "$@"
}

# The first two parts keep their rate, so that either may go on for longer. The last one is trained several times
# from where they end, each time with sentences in another order and a rate that falls to 0, and averaged; edits
# count three times as much as what is copied.
noise() {
  fit noise --lr "$rate" --lr-scheduler fixed --warmup-updates "$warmup" --max-update $((updates * 35 / 100))
}

edits() {
  [ -z "$real" ] || fit edits --lr "$rate" --lr-scheduler fixed --max-update $((updates * 35 / 100)) \
    --finetune-from-model "$work/noise/checkpoints/checkpoint_last.pt"
}

finish() {
  local from=noise part=$((updates * 30 / 100 / ends)) end found=()
  [ -z "$real" ] || from=edits
  for ((end = 1; end <= ends; end++)); do
    fit finish --lr "$rate" --lr-scheduler polynomial_decay --total-num-update $part --max-update $part \
      --edit-weight 3 --finetune-from-model "$work/$from/checkpoints/checkpoint_last.pt" --seed $end \
      --save-dir "$work/finish/checkpoints$end" --tensorboard-logdir "$work/tensorboard/finish$end"
    found+=("$work/finish/checkpoints$end/checkpoint_last.pt")
  done
  nartk-average --inputs "${found[@]}" --output "$work/finish/averaged.pt"
}

convert() {
  nartk-convert "$work/finish/averaged.pt" --output "$work/model" \
    --dict "$work/noise/dict.txt" --spm "$work/noise/spm.model" --dtype fp16 --tokenization penn --card "$here/card.md"
}

guard() {
  python "$here/fit_guard.py" "$work/model" ${m2:+--m2 "$m2"} ${quick:+--sentences 60} --edit 0.85
  [ -z "$frequencies" ] || python "$here/fit_speller.py" "$work/model" --frequencies "$frequencies" \
    ${text[0]+--text "${text[@]}"}
}

int8() {
  nartk-convert "$work/model" --quantize int8 --output "$work/int8"
}

decode() {
  local source=$work/noise/valid.src
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
  local source=$work/noise/valid.src refs=("$work/noise/valid.trg")
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
