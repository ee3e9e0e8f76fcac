#!/usr/bin/env bash
# Makes the traces from which docs/pages.py draws the strategies whose models do not ship:
#
#   docs/traces/make.sh WORK WHISPER
#
# It trains small models on corpora that ship, in minutes: of text, 64 features wide, 600 updates each,
# which write spoken digits (`nine two seven five`) as German number words; of spoken numbers, one that begins with the
# encoder of asr-digits. WHISPER is a folder of Whisper tiny.en. What is there in WORK is not made again.
# Needs the extras train and audio.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
work=$(realpath -m "$1") whisper=$(realpath "$2")
mkdir -p "$work/text"
python "$here/data.py" "$work"
[ -e "$work/bin" ] || nartk-preprocess --source-lang en --target-lang de --trainpref "$work/text/train" \
  --validpref "$work/text/dev" --destdir "$work/bin" --joined-dictionary
if [ ! -e "$work/data" ]; then
  python "$root/recipes/asr/prepare.py" --corpus numbers --output "$work/data" --copies 1 --varied 800
  cp "$root"/data/models/asr-digits/{dict.txt,spm.model,cmvn.json} "$work/data"
fi

# fit NAME UPDATES DATA FLAGS...
fit() {
  [ ! -e "$work/$1" ] || return 0
  nartk-train "$work/$3" --cpu --optimizer nartk_adamw --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --dropout 0.1 \
    --lr-scheduler polynomial_decay --warmup-updates 60 --total-num-update "$2" --max-update "$2" --seed 1 \
    --num-workers 0 --save-dir "$work/trained/$1" --no-epoch-checkpoints --disable-validation \
    --log-format simple --log-interval 100 "${@:4}"
}

# text NAME ARCHITECTURE FLAGS...
text() {
  local criterion=nartk_nar
  [ "$2" != transformer ] || criterion=nartk_cross_entropy
  fit "$1" 600 bin --task nartk_translation --source-lang en --target-lang de --arch "nartk_$2" \
    --criterion $criterion --label-smoothing 0.1 --lr 0.002 --d-model 64 --encoder-ffn 256 --decoder-ffn 256 \
    --encoder-layers 2 --decoder-layers 2 --encoder-heads 4 --decoder-heads 4 --max-source-len 64 \
    --max-target-len 64 --max-tokens 1500 "${@:3}"
  [ -e "$work/$1" ] ||
    nartk-convert "$work/trained/$1/checkpoint_last.pt" --output "$work/$1" --dict "$work/bin/dict.en.txt"
}

# sound NAME ARCHITECTURE UPDATES FLAGS...: of the shape of asr-digits
sound() {
  fit "$1" "$3" data --task nartk_speech --arch "nartk_$2" --criterion nartk_speech --init-encoder asr-digits \
    --lr 0.001 --fix-batch-norm 1 --d-model 128 --encoder-layers 4 --encoder-heads 4 --encoder-ffn 384 \
    --conv-kernel 15 --subsampling-channels 32 --input-features 40 --max-source-len 2000 --max-target-len 128 \
    --decoder-layers 1 --decoder-heads 4 --decoder-ffn 384 --max-tokens 2000 "${@:4}"
  [ -e "$work/$1" ] ||
    nartk-convert "$work/trained/$1/checkpoint_last.pt" --output "$work/$1" --dict "$work/data/dict.txt"
}

text ar transformer
text glat nat --glancing 0.5:0.3@600
text cmlm nat --decoder-input mask --glancing-strategy cmlm
text blockwise blockwise --block 12 --glancing 0.5:0.3@600
sound paraformer paraformer 700 --sampling-ratio 0.75 --tail-threshold 0.6

cd "$work"
ln -sfn "$whisper" tiny.en
while IFS=$'\t' read -r strategy model source flags; do
  # shellcheck disable=SC2086
  nartk-decode "$model" "$source" $flags --strategy "$strategy" --threads 1 --trace "$here/$strategy.jsonl" --quiet
done <"$here/commands.tsv"
