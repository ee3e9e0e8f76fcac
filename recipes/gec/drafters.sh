#!/usr/bin/env bash
# Drafters for a correction model: it corrects noised text, and a blockwise drafter, a small autoregressive model
# and a light one, which reads what it encodes, learn what it outputs. With their drafts its output is the same:
#
#   recipes/gec/drafters.sh [--model NAME] [--work DIR] [--device cpu|cuda] [--sentences N] [--updates N]
#                           [--source FILE] [--stage NAME[,NAME...]]
#
# Stages: prepare distil binarise drafter small light verify bench. A stage that has finished is not run again; --stage
# runs the stages it names, finished or not, and no others. Training goes on where it was broken off.
#   --model      the model that is to be faster, with a sentencepiece vocabulary (default gec-en)
#   --sentences  to learn from, at least: an even sample of data/corpora (default 30000)
#   --updates    of each drafter (default 2000: 24 and 12 minutes on one core, the light one not timed)
#   --source     sentences to verify and to measure with, such as JFLEG's dev.src (default: 500 noised ones)
# Needs the extras train and score (README.md, "Install").
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../stages.sh
source "$here/../stages.sh"
stages=(prepare distil binarise drafter small light verify bench)
model=gec-en work=runs/gec-drafters device=cpu sentences=30000 updates=2000 source='' chosen=''
src=src trg=trg

usage() { sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --model | --work | --device | --sentences | --updates | --source | --stage) [ $# -gt 1 ] || die "$1 needs a value" ;;
    *) usage >&2; die "unknown option $1" ;;
  esac
  case $1 in
    --model) model=$2 ;;
    --work) work=$2 ;;
    --device) device=$2 ;;
    --sentences) sentences=$2 ;;
    --updates) updates=$2 ;;
    --source) source=$2 ;;
    --stage) chosen=${2//,/ } ;;
  esac
  shift 2
done
require "$chosen" train,score "${stages[@]}"
mkdir -p "$work/text"
: "${source:=$work/text/valid.src}"
schedule=(--lr 0.002 --warmup-updates $((updates / 10)) --log-interval 100)
train_on "$device"

prepare() {
  local every
  every=$(xz -dc "$here"/../../data/corpora/*.txt.xz | awk -v n="$sentences" 'END { print int(NR / n) + (NR < n) }')
  xz -dc "$here"/../../data/corpora/*.txt.xz | awk -v every="$every" 'NR % every == 0' | nartk-noise |
    awk -v text="$work/text" '{ print > text (NR <= 500 ? "/valid.src" : "/train.src") }'
  python - "$model" "$work/text" <<'PYTHON'
import json
import shutil
import sys
from pathlib import Path

from nartk.checkpoints.names import model_folder

folder, text = model_folder(sys.argv[1]), Path(sys.argv[2])
for name in ("spm.model", "dict.txt"):
    shutil.copy(folder / name, text)
settings = json.loads((folder / "config.json").read_text())["model"]
flags = []
for name, value in settings.items():
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        flags.append(f"--{flag}" if value else f"--no-{flag}")
    elif name not in ("src_vocab", "tgt_vocab", "pad", "dropout", "decoder_layers"):
        flags.append(f"--{flag} {value}")
(text / "model.flags").write_text(" ".join(flags))
PYTHON
}

distil() {
  local part
  for part in train valid; do
    nartk-distill "$model" "$work/text/$part.src" --target-lang trg --pretokenized --strategy iad --adaptive \
      --truncate --device "$device" --output "$work/distilled/$part"
  done
}

binarise() {
  local said=$work/distilled
  python "$here/../mt/prepare.py" encode --model "$work/text/spm.model" "$said"/{train,valid}/train.{src,trg}
  nartk-preprocess --source-lang src --target-lang trg --trainpref "$said/train/train.spm" \
    --validpref "$said/valid/train.spm" --destdir "$work/bin" --joined-dictionary --srcdict "$work/text/dict.txt"
}

# fit_drafter FOLDER KIND FLAGS...: trains on what the model said, and on how likely it held every word.
fit_drafter() {
  fit "$work/$1" "$2" "$updates" --criterion nartk_drafter --verifier "$model" --distil kl --max-tokens 2048 \
    --dropout 0.1 --decoder-layers 1 "${@:3}"
}

# Both have the model's settings but for what is named, so that they read what it reads.
# shellcheck disable=SC2046
drafter() {
  fit_drafter drafter blockwise $(<"$work/text/model.flags") --init-encoder "$model" --glancing "0.5:0.3@$updates"
}

# shellcheck disable=SC2046
small() {
  fit_drafter small transformer $(<"$work/text/model.flags") --d-model 128 --encoder-ffn 512 --decoder-ffn 512 \
    --encoder-layers 3
}

# It encodes nothing: what the model has encoded is its source, and the model's lengths are its own.
light() {
  converting=(--word-counts "$work/distilled/train/word_counts.json")
  fit_drafter light light_drafter --decoder-features 128 --decoder-heads 4 --decoder-ffn 512
  converting=()
}

verify() {
  local each
  for each in "gad --drafter $work/drafter/model" "speculative --drafter $work/small/model" \
    "speculative --drafter $work/light/model" iad; do
    # shellcheck disable=SC2086
    nartk-verify "$model" "$source" --pretokenized --strategy $each --dtype fp32,bf16 --batch-size 1,8,32 \
      --device "$device" --quiet
  done
}

bench() {
  local light=speculative:drafter=$work/light/model each=speculative:adaptive=0
  each+=:block_size=6:stop_below=0.3:drafter_words=2000:drafter=$work/light/model
  nartk-bench "$model" "$source" --pretokenized --device "$device" --batch-size 1,32 --rounds 3 --limit 100 --threads 1 --costs \
    --strategies "greedy,iad,gad:drafter=$work/drafter/model,speculative:drafter=$work/small/model,$light,$each" \
    --markdown "$work/bench.md" --quiet
}

mark() { echo "$1"; }
run_stages "$chosen" "${stages[@]}"
