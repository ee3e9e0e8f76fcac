# Sourced by run.sh: the stages of translation into speech.
# shellcheck shell=bash
stages=(prepare recogniser first align models joint decode score table)
targets=(fr es it)
# Spectrograms of the voice, whose rate is 16 kHz.
mel=(--sample-rate 16000 --high 7600)

describe() {
  acoustic=(--acoustic-features "$d_model" --acoustic-encoder-layers 2 --acoustic-decoder-layers 2
    --acoustic-heads 2 --acoustic-ffn $((3 * d_model)) --acoustic-kernel 5 --acoustic-second-kernel 1
    --predictor-features $((d_model / 2)) --max-mel-len 2000)
  stepwise=(--encoder-layers 2 --encoder-heads 2 --encoder-ffn $((3 * d_model)) --decoder-layers 2 --decoder-heads 2
    --decoder-ffn $((3 * d_model)) --prenet-features $((d_model / 2)) --max-mel-len 2000)
  python "$here/speakers.py" --updates "$others" >"$work/systems.tsv"
  tell_missing
}

prepare() {
  python "$here/prepare_speech.py" --target "$target" --output "$work" --voice "$voice" --copies "$copies" \
    --new "$new" --without "$without" ${quick:+--quick}
}

# It hears what is said, by other voices than the one that is learned.
recogniser() { train recogniser "$updates"; }

# CTC, with whose encoder the graph begins.
first() { train ctc "$updates"; }

# Durations, pitch and energy of the voice's phonemes, by a CTC model of them.
align() {
  local split
  train aligner $(((others + 2) / 3))
  for split in train valid; do
    nartk-align "$work/aligner/model" "$work/data.voice/$split.tsv" --output "$work/data.fastspeech2" \
      "${mel[@]}" --quiet || [ $? = 3 ] # some recordings cannot be aligned, and are named
  done
  python "$here/prepare_speech.py" --pair --output "$work"
}

# The two parts, from sound to phonemes and from phonemes to spectrograms, and what else speaks phonemes.
models() {
  local name architecture flags
  later train dag "$others"
  while IFS=$'\t' read -r _ name architecture flags; do
    [ -e "$work/$name/model/config.json" ] || later logged "$name" "$name" "$work/$name/log" fit_voice "$name" \
      "$architecture" "$flags"
  done < <(systems model | grep -P '^model\t(fastspeech2|tts-)')
  wait
}

# fit_voice NAME ARCHITECTURE FLAGS: in more steps than the others, of which each is shorter.
fit_voice() {
  local most=$((updates * 4 / 3)) shape=("${acoustic[@]}")
  [ "$2" = fastspeech2 ] || shape=("${stepwise[@]}")
  # shellcheck disable=SC2086
  nartk-train "$work/data.fastspeech2" --task nartk_tts --criterion nartk_tts --arch "nartk_$2" "${place[@]}" $3 \
    --d-model "$d_model" "${shape[@]}" --max-source-len 128 --max-target-len 128 --dropout 0.05 \
    --max-tokens "$frames" --optimizer nartk_adamw --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
    --lr-scheduler polynomial_decay --lr 0.002 --warmup-updates $((most / 10)) --total-num-update "$most" \
    --max-update "$most" --seed 1 --num-workers 0 --save-dir "$work/$1/checkpoints" \
    --save-interval-updates $(((most + 3) / 4)) --keep-interval-updates 1 --no-epoch-checkpoints \
    --log-format simple --log-interval 25
  nartk-convert "$work/$1/checkpoints/checkpoint_last.pt" --output "$work/$1/model" \
    --dict "$work/data.fastspeech2/dict.txt" --dtype fp16
}

# Both together.
joint() {
  [ -e "$work/data.daspeech-path" ] || ln -s data.daspeech "$work/data.daspeech-path"
  size+=("${acoustic[@]}" --adaptor-features $((2 * d_model)))
  for name in daspeech daspeech-path; do
    later train "$name" $(((others + 1) / 2))
  done
  wait
}

# speak FILE FOLDER FLAGS...: phonemes in FILE, their sound in FILE.wavs, and figures in FILE.json. It is never
# resumed, since a journal holds no sound.
speak() {
  nartk-decode "$2" "${@:3}" --speech "$1.wavs" --device "$device" --dtype "$dtype" --threads 1 --quiet \
    --output "$1" --stats "$1.json"
}

# The cascade writes the phonemes of the graph, which the other model speaks.
cascade() {
  resumed "$1.phonemes" nartk-decode "$2" "${@:3}" --device "$device" --dtype "$dtype" --threads 1 --quiet \
    --stats "$1.graph.json"
  speak "$1" "$work/fastspeech2/model" "$1.phonemes"
}

decode() {
  mkdir -p "$work/out"
  local name spec folder flags file how
  while IFS=$'\t' read -r name spec folder flags; do
    file=$work/out/$(key "$name" "$spec")
    [ ! "$file" -nt "$folder/config.json" ] || continue
    case $name in
      fastspeech2 | tts-*) how=speak flags="$work/data/test.txt" ;;
      dag) how=cascade flags="--manifest $work/data/test.tsv $flags" ;;
      *) how=speak flags="--manifest $work/data/test.tsv $flags" ;;
    esac
    # shellcheck disable=SC2086
    later attempt "${file##*/}" $how "$file" "$folder" $flags
  done < <(runs)
  wait
}

# hear FILE: what the recogniser hears in the sounds of FILE.lst, beside the reference speech.
hear() {
  local words=$work/data/test.words.txt scores=$work/scores/${1##*/}
  nartk-score asr-bleu "$1.lst" --recogniser "$work/recogniser/model" --ref "$words" \
    --ref-speech "$work/out/reference.lst" --json >"$scores.asr-bleu.part"
  resumed "$1.heard" nartk-decode "$work/recogniser/model" --manifest "$1.lst" --quiet || [ $? = 3 ]
  for metric in wer ser; do
    nartk-score $metric "$1.heard" --ref "$words" --json >"$scores.$metric.json"
  done
  mv "$scores.asr-bleu.part" "$scores.asr-bleu.json"
}

# listed FILE: the sounds of an output, a line for each that is tested, by the recording's name or the line's number.
listed() {
  local source line=0
  while read -r source; do
    line=$((line + 1)) source=$1.wavs/${source##*/}
    [ -e "$source" ] || source=$1.wavs/$line.wav
    echo "$source"
  done < <(sed 1d "$work/data/test.tsv")
}

score() {
  mkdir -p "$work/scores"
  local name spec file scores
  sed "1d; s#^#$work/data.voice/#" "$work/data.voice/test.tsv" >"$work/out/reference.lst"
  [ -e "$work/scores/reference.asr-bleu.json" ] || attempt reference hear "$work/out/reference"
  while IFS=$'\t' read -r name spec _ _; do
    file=$work/out/$(key "$name" "$spec") scores=$work/scores/$(key "$name" "$spec")
    [ -e "$file" ] && [ ! "$scores.asr-bleu.json" -nt "$file" ] || continue
    listed "$file" >"$file.lst"
    nartk-score wer "$file" --ref "$work/data/test.txt" --json >"$scores.per.json"
    later attempt "${file##*/}.heard" hear "$file"
  done < <(runs)
  wait
}

table() {
  python "$here/spoken_table.py" --work "$work"
}
