#!/usr/bin/env bash
# Machine translation, autoregressive and not, from text to a table of quality and speed:
#
#   recipes/mt/run.sh [--pair en-de|de-en|en-ja] [--quick] [--data DIR] [--work DIR] [--device cpu|cuda]
#                     [--stage NAME[,NAME...]] [--only NAME,...] [--on raw|distilled] [--d-model N]
#                     [--updates N] [--teacher-updates N] [--jobs N]
#
# Stages: prepare sentencepiece binarise lm teacher distil models calibrate decode score speed table. A stage that
# has finished is not run again; --stage runs the stages it names, finished or not, and no others. Training,
# distillation and the models within their stage go on where they were broken off.
#   --pair     en-de (default, where the corpus is) and de-en: Multi30k; en-ja: the Tanaka corpus, which ships
#   --data     folder of Multi30k (see recipes/mt/README.md; default: $NARTK_SHARED_DATA/mt/multi30k)
#   --quick    small models on 3,000 pairs, few updates: every stage for real, in minutes on two cores
#   --only     these alone: the students nat, cmlm, glat, ctc, ctc-glat, dag, dag-fuzzy (goes on with dag), and the
#              teacher's drafters, blockwise, small, light, light-two; or settings to compare them with: glat-masked,
#              dag-8, dag-masked, dag-masked-8, dag-longer, dag-masked-longer; dag-continued (goes on with dag),
#              dag-fuzzy-8 and dag-fuzzy-masked (go on with theirs)
#   --on       train the students on these data alone (default: on both); drafters know distilled data alone
#   --d-model  width of all models (default 128, so that two cores train one in an hour at most; --quick 64)
#   --updates  of a student (default 4000, --quick 60); --teacher-updates (default 4000, --quick 200)
#   --jobs     trainings and decodings at a time (default 2, with cuda 1); speed is measured one at a time
# Needs the extras train, score and plot (README.md, "Install").
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../stages.sh
source "$here/../stages.sh"
stages=(prepare sentencepiece binarise lm teacher distil models calibrate decode score speed table)
pair= quick= data= work= device=cpu only= on='raw distilled' d_model= updates= teacher_updates= jobs= chosen=

usage() { sed -n '2,23s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1; shift; continue ;;
    -h | --help) usage; exit 0 ;;
    --pair | --data | --work | --device | --stage | --only | --on | --d-model | --updates | \
      --teacher-updates | --jobs)
      [ $# -gt 1 ] || die "$1 needs a value" ;;
    *) usage >&2; die "unknown option $1" ;;
  esac
  case $1 in
    --pair) pair=$2 ;;
    --data) data=$2 ;;
    --work) work=$2 ;;
    --device) device=$2 ;;
    --stage) chosen=${2//,/ } ;;
    --only) only=$2 ;;
    --on) on=$2
      [[ "raw distilled" == *"$on"* ]] || die "--on $on: choose raw or distilled" ;;
    --d-model) d_model=$2 ;;
    --updates) updates=$2 ;;
    --teacher-updates) teacher_updates=$2 ;;
    --jobs) jobs=$2 ;;
  esac
  shift 2
done
[ -n "$data" ] || data=${NARTK_SHARED_DATA:-$here/../../../shared/data}/mt/multi30k
if [ -z "$pair" ]; then
  pair=en-de
  if [ ! -d "$data" ]; then
    pair=en-ja
    echo "run.sh: no Multi30k in $data: taking the pair en-ja, which ships" >&2
  fi
fi
case $pair in
  en-de | de-en) tokenize=13a ;;
  # sacrebleu's tokeniser of Japanese needs MeCab; without it, BLEU over characters, which is another number.
  en-ja) tokenize=char
    if python -c 'import MeCab, ipadic' 2>/dev/null; then tokenize=ja-mecab
    else echo "run.sh: BLEU over characters: pip install 'sacrebleu[ja]' for words" >&2; fi ;;
  *) die "no pair '$pair': choose from en-de, de-en, en-ja" ;;
esac
require "$chosen" train,score,plot "${stages[@]}"
src=${pair%-*} trg=${pair#*-}
[ -n "$work" ] || work=runs/mt-$pair${quick:+-quick}
mkdir -p "$work"

if [ -n "$quick" ]; then
  : "${updates:=60}" "${teacher_updates:=200}" "${d_model:=64}"
  size=(--encoder-layers 2 --decoder-layers 2 --encoder-heads 2 --decoder-heads 2)
  schedule=(--lr 0.002 --warmup-updates 30 --log-interval 20) pieces=2000 tokens=1500 teacher_tokens=1500
  # A teacher of 200 updates says little: most references stay.
  distil=(--strategy greedy --max-len 40 --min-bleu 10 --drop-longer 100 --drop-repeats 6)
  calibration=(--grid fallback=0.5,0.9 --grid rollback=2 --rounds 1)
  speed=(--rounds 2 --single 5 --many 32 --threads 1)
else
  : "${updates:=4000}" "${teacher_updates:=4000}" "${d_model:=128}"
  size=(--encoder-layers 3 --decoder-layers 3 --encoder-heads 4 --decoder-heads 4)
  # Students get small batches, and more of them: that is what a short training needs.
  schedule=(--lr 0.002 --warmup-updates 400 --log-interval 100) pieces=4000 tokens=2048 teacher_tokens=4096
  distil=(--strategy beam --beam-size 5 --early-stopping first)  # as the table in README.md was made
  distil+=(--drop-longer 200 --drop-ratio 3 --drop-copies 1 --drop-repeats 4)
  calibration=(--rounds 1)
  speed=(--rounds 3 --single 100 --many 1000)
fi
size+=(--d-model "$d_model" --encoder-ffn $((4 * d_model)) --decoder-ffn $((4 * d_model)))
train_on "$device"
: "${jobs:=$([ "$device" = cpu ] && echo 2 || echo 1)}"
# With several trainings at a time, each on its own core.
[ "$jobs" = 1 ] || export OMP_NUM_THREADS=1

prepare() {
  python "$here/prepare.py" text --pair "$pair" --data "$data" --output "$work/text" ${quick:+--quick}
}

sentencepiece() {
  python "$here/prepare.py" pieces --output "$work/text" --langs "$src" "$trg" --size "$pieces"
  python "$here/prepare.py" encode --model "$work/text/spm.model" "$work/text"/{train,valid}.{"$src","$trg"}
}

binarise() {
  nartk-preprocess --source-lang "$src" --target-lang "$trg" --trainpref "$work/text/train.spm" \
    --validpref "$work/text/valid.spm" --destdir "$work/bin" --joined-dictionary --srcdict "$work/text/dict.txt"
}

# Of what the students say, for the beam searches that weigh it in.
lm() {
  python "$here/language_model.py" "$work/text/train.spm.$trg" --output "$work/text/lm.arpa"
}

# systems WHAT: the lines of systems.tsv that begin with WHAT.
systems() { grep -P "^$1\t" "$work/systems.tsv" || true; }
key() { printf '%s.%s.%s' "$1" "$2" "$3" | tr ':=' '_-'; }

describe() {
  python "$here/systems.py" --updates "$updates" --only "$only" >"$work/systems.tsv"
  systems missing | while IFS=$'\t' read -r _ name spec reason; do
    echo "run.sh: left out: $name $spec: $reason" >&2
  done
}

teacher() {
  local flags
  flags=$(systems model | awk -F '\t' '$2 == "teacher" { print $4 }')
  # shellcheck disable=SC2086
  fit "$work/teacher" transformer "$teacher_updates" "${size[@]}" --max-tokens "$teacher_tokens" --dropout 0.2 $flags
}

distil() {
  nartk-distill "$work/teacher/model" "$work/text/train.$src" --target "$work/text/train.$trg" --device "$device" \
    "${distil[@]}" --output "$work/distilled"
  python "$here/prepare.py" encode --model "$work/text/spm.model" "$work/distilled"/train.{"$src","$trg"}
  nartk-preprocess --source-lang "$src" --target-lang "$trg" --trainpref "$work/distilled/train.spm" \
    --destdir "$work/bin-distilled" --joined-dictionary --srcdict "$work/text/dict.txt"
}

# One student: what fails leaves a mark and its log, and the others go on.
student() {
  local name=$1 kind=$2 flags=$3 kind_of_data=$4
  local folder=$work/$name.$kind_of_data extra=(--init-encoder "$work/teacher/checkpoints/checkpoint_last.pt")
  [ "$kind_of_data" = raw ] || extra+=(--distilled "$work/bin-distilled")
  flags=${flags//WORK/$work} flags=${flags//DATA/$kind_of_data}
  local shape=("${size[@]}") converting=()
  case $name in # they may pick among the words that the teacher writes most often
    small | light*) converting=(--word-counts "$work/distilled/word_counts.json") ;;
  esac
  if [ "$kind" = light_drafter ]; then # its encoder is the teacher's, and so are its lengths
    shape=(--decoder-features "$d_model" --decoder-heads 4 --decoder-ffn $((4 * d_model)))
    extra=(--distilled "$work/bin-distilled" --criterion nartk_drafter --verifier "$work/teacher/model")
  fi
  # shellcheck disable=SC2086
  logged "$name.$kind_of_data" "$name on $kind_of_data data" "$folder/log" \
    fit "$folder" "$kind" "$updates" "${shape[@]}" --max-tokens "$tokens" --dropout 0.1 $flags "${extra[@]}"
}

models() {
  local what name kind flags kind_of_data with
  for with in -v ''; do # those that go on with another one after it
    while IFS=$'\t' read -r what name kind flags; do
      for kind_of_data in $on; do
        [ "$name" = teacher ] || [ "$what.$kind_of_data" = drafter.raw ] ||
          [ -e "$work/$name.$kind_of_data/model/config.json" ] ||
          later student "$name" "$kind" "$flags" "$kind_of_data"
      done
      # The longest first, so that no job is left over at the end.
    done < <({ systems model; systems drafter; } | grep $with -e --finetune-from-model | tac)
    wait
  done
}

# Thresholds of bild, kept with the teacher; where none keeps the promise, those that are built in remain.
calibrate() {
  [ -e "$work/small.distilled/model/config.json" ] || return 0
  nartk-calibrate "$work/teacher/model" "$work/text/valid.$src" --ref "$work/text/valid.$trg" --max-drop 0.3 \
    --drafter "$work/small.distilled/model" --metric "bleu --tokenize $tokenize" --batch-size 1 "${calibration[@]}" \
    --device "$device" --json "$work/calibration.json" --plot "$work/calibration.png" --quiet ||
    echo "run.sh: no thresholds of bild were stored" >&2
}

# Names of systems in capitals become their folders, and LM the language model.
folders() {
  sed -E ":again
    s#^(.*[= ])TEACHER#\1$work/teacher/model#
    s#^(.*[= ])LM\b#\1$work/text/lm.arpa#
    s#^(.*[= ])([A-Z][A-Z-]+)#\1$work/\L\2.distilled/model#
    t again"
}

# Each way to decode each model that is there: NAME KIND-OF-DATA SPEC FOLDER FLAGS.
runs() {
  local name spec flags kind_of_data folder helper
  while IFS=$'\t' read -r _ name spec flags; do
    flags=$(folders <<<"$flags")
    for helper in $flags; do
      [[ $helper != "$work"/* || -e $helper/config.json || -f $helper ]] || continue 2
    done
    for kind_of_data in raw distilled; do
      folder=$work/$name.$kind_of_data
      if [ "$name" = teacher ]; then
        [ "$kind_of_data" = raw ] || continue
        folder=$work/teacher
      fi
      [ -e "$folder/model/config.json" ] || continue
      printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$kind_of_data" "$spec" "$folder/model" "$flags"
    done
  done < <(systems decode)
}

decode() {
  mkdir -p "$work/out"
  local name kind_of_data spec folder flags file
  while IFS=$'\t' read -r name kind_of_data spec folder flags; do
    file=$work/out/$(key "$name" "$kind_of_data" "$spec")
    [ ! "$file" -nt "$folder/config.json" ] || continue
    # shellcheck disable=SC2086
    later attempt "${file##*/}" resumed "$file" nartk-decode "$folder" "$work/text/test.$src" $flags \
      --device "$device" --truncate --quiet --stats "$file.json"
  done < <(runs)
  wait
}

score() {
  mkdir -p "$work/scores"
  local name kind_of_data spec file metric options
  while IFS=$'\t' read -r name kind_of_data spec _ _; do
    file=$(key "$name" "$kind_of_data" "$spec")
    [ -e "$work/out/$file" ] || continue
    for metric in bleu chrf; do
      [ ! "$work/scores/$file.$metric.json" -nt "$work/out/$file" ] || continue
      options=()
      [ $metric = chrf ] || options=(--tokenize "$tokenize")
      later attempt "$file.$metric" sh -c 'out=$1; shift; nartk-score "$@" >"$out.part" && mv "$out.part" "$out"' sh \
        "$work/scores/$file.$metric.json" $metric "$work/out/$file" "${options[@]}" --json --ref "$work/text/test.$trg"
    done
  done < <(runs)
  wait
}

speed() {
  local name kind_of_data spec folder
  while IFS=$'\t' read -r name kind_of_data spec folder _; do
    printf '%s\t%s\t%s\n' "$(key "$name" "$kind_of_data" "$spec")" "$folder" "$(folders <<<"$spec")"
  done < <(runs) | env -u OMP_NUM_THREADS python "$here/speed.py" --source "$work/text/test.$src" \
    --output "$work/speed.json" --device "$device" "${speed[@]}"
}

table() {
  python "$here/table.py" --work "$work"
}

mark() { echo "$1"; }

describe
run_stages "$chosen" "${stages[@]}"
