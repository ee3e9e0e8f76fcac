#!/usr/bin/env bash
# Simplification and summarization, and what drafts do for their speed, from text to a table:
#
#   recipes/summarization/run.sh [--task simplify|scitldr] [--quick] [--data DIR] [--work DIR] [--test NAME]
#                                [--device cpu|cuda] [--stage NAME[,NAME...]] [--d-model N] [--updates N]
#                                [--drafter-updates N] [--jobs N]
#
# Stages: prepare sentencepiece binarise model distil drafter small light decode score speed table. A stage that has
# finished is not run again; --stage runs the stages it names, finished or not, and no others. Training and
# distillation go on where they were broken off.
#   --task     simplify (default): OneStopEnglish and WikiSplit; scitldr: an abstract to one sentence
#   --data     folder of the whole sets (see README.md; default: $NARTK_SHARED_DATA/summ where that is; with
#              --quick and where it is not, the parts that ship)
#   --test     set to decode and score: onestop (default), wikisplit or asset of simplify, scitldr of scitldr
#   --quick    small models on 1,500 texts, few updates: every stage for real, in minutes on one core
#   --d-model  width of verifier and drafter (default 128, so that a core trains all in two or three hours; --quick 64);
#              the small model has half of it
#   --updates  of the verifier (default 4000, --quick 200)
#   --drafter-updates  of each drafter (default 4000, --quick 100)
#   --jobs     decodings at a time (default 1); speed is measured one at a time
# Needs the extras train and score (README.md, "Install").
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../stages.sh
source "$here/../stages.sh"
stages=(prepare sentencepiece binarise model distil drafter small light decode score speed table)
task=simplify quick= data= work= test= device=cpu d_model= updates= drafter_updates= jobs=1 chosen=
src=src trg=trg

usage() { sed -n '2,23s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1; shift; continue ;;
    -h | --help) usage; exit 0 ;;
    --task | --data | --work | --test | --device | --stage | --d-model | --updates | --drafter-updates | --jobs)
      [ $# -gt 1 ] || die "$1 needs a value" ;;
    *) usage >&2; die "unknown option $1" ;;
  esac
  case $1 in
    --task) task=$2 ;;
    --data) data=$2 ;;
    --work) work=$2 ;;
    --test) test=$2 ;;
    --device) device=$2 ;;
    --stage) chosen=${2//,/ } ;;
    --d-model) d_model=$2 ;;
    --updates) updates=$2 ;;
    --drafter-updates) drafter_updates=$2 ;;
    --jobs) jobs=$2 ;;
  esac
  shift 2
done
case $task in
  simplify) tests=(onestop wikisplit asset) metrics=(sari rouge) ;;
  scitldr) tests=(scitldr) metrics=(rouge) ;;
  *) die "no task '$task': choose from simplify, scitldr" ;;
esac
[ -n "$test" ] || test=${tests[0]}
[[ " ${tests[*]} " == *" $test "* ]] || die "no test set '$test' of $task: choose from ${tests[*]}"
if [ -z "$data" ] && [ -z "$quick" ] && [ -d "${NARTK_SHARED_DATA-}/summ" ]; then
  data=$NARTK_SHARED_DATA/summ
fi
require "$chosen" train,score "${stages[@]}"
[ -n "$work" ] || work=runs/$task${quick:+-quick}
mkdir -p "$work"

if [ -n "$quick" ]; then
  : "${updates:=200}" "${drafter_updates:=100}" "${d_model:=64}"
  encoder=2 decoder=2 drafter_decoder=1 heads=2 small=1 pieces=1500 tokens=2000 drafter_tokens=2000
  schedule=(--lr 0.003 --warmup-updates 40 --log-interval 25)
  # Quick models have learnt no end: they go on to the limit.
  limit=(--max-len 40) speed=(--rounds 2 --single 5 --many 30 --threads 1)
else
  : "${updates:=4000}" "${drafter_updates:=4000}" "${d_model:=128}"
  # Drafters get small batches, and more of them: that is what a short training needs.
  encoder=3 decoder=3 drafter_decoder=3 heads=4 small=1 pieces=4000 tokens=4096 drafter_tokens=2048
  schedule=(--lr 0.002 --warmup-updates 400 --log-interval 100)
  limit=(--max-len 256) speed=(--rounds 3 --single 50 --many 400)
fi
train_on "$device"

# size WIDTH ENCODER-LAYERS DECODER-LAYERS
size() {
  echo "--d-model $1 --encoder-ffn $((4 * $1)) --decoder-ffn $((4 * $1)) --encoder-layers $2 --decoder-layers $3" \
    "--encoder-heads $heads --decoder-heads $heads"
}

prepare() {
  python "$here/prepare.py" "$task" --output "$work/text" ${data:+--data "$data"} ${quick:+--quick}
}

sentencepiece() {
  python "$here/../mt/prepare.py" pieces --output "$work/text" --langs src trg --size "$pieces"
  python "$here/../mt/prepare.py" encode --model "$work/text/spm.model" "$work/text"/{train,valid}.{src,trg}
}

binarise() {
  nartk-preprocess --source-lang src --target-lang trg --trainpref "$work/text/train.spm" \
    --validpref "$work/text/valid.spm" --destdir "$work/bin" --joined-dictionary --srcdict "$work/text/dict.txt"
}

# ways WHAT: the lines of ways.tsv that begin with WHAT.
ways() { grep -P "^$1\t" "$work/ways.tsv" || true; }
flags_of() { ways model | awk -F '\t' -v name="$1" '$2 == name { print $4 }'; }

# Flags are split at spaces on purpose here and below.
# shellcheck disable=SC2046
model() {
  fit "$work/ar" transformer "$updates" --max-tokens "$tokens" --dropout 0.2 \
    $(size "$d_model" "$encoder" "$decoder") $(flags_of ar)
}

# What greedy search says is what drafts must be like, copies and repetitions too: nothing is filtered out. `iad`
# says the same, faster.
distil() {
  nartk-distill "$work/ar/model" "$work/text/train.src" --target-lang trg --strategy iad --adaptive "${limit[@]}" \
    --truncate --device "$device" --output "$work/distilled"
  python "$here/../mt/prepare.py" encode --model "$work/text/spm.model" "$work/distilled"/train.{src,trg}
  nartk-preprocess --source-lang src --target-lang trg --trainpref "$work/distilled/train.spm" \
    --destdir "$work/bin-distilled" --joined-dictionary --srcdict "$work/text/dict.txt"
}

# fit_drafter NAME KIND FLAGS...: trains on what the verifier said, and on how likely it held every word.
# shellcheck disable=SC2046
fit_drafter() {
  local name=$1 kind=$2
  shift 2
  fit "$work/$name" "$kind" "$drafter_updates" --max-tokens "$drafter_tokens" --dropout 0.1 \
    --distilled "$work/bin-distilled" --criterion nartk_drafter --verifier "$work/ar/model" --distil kl "$@" \
    $(flags_of "$name")
}

# shellcheck disable=SC2046
drafter() {
  fit_drafter drafter blockwise $(size "$d_model" "$encoder" "$drafter_decoder") \
    --init-encoder "$work/ar/checkpoints/checkpoint_last.pt"
}

# shellcheck disable=SC2046
small() {
  fit_drafter small transformer $(size $((d_model / 2)) "$small" "$small")
}

# It reads what the verifier encodes, and may draft only the words that that writes most often.
light() {
  converting=(--word-counts "$work/distilled/word_counts.json")
  fit_drafter light light_drafter --decoder-features "$d_model" --decoder-ffn $((4 * d_model)) \
    --decoder-heads "$heads" --decoder-layers 1
  converting=()
}

named() { sed "s|DRAFTER|$work/drafter/model|g; s|SMALL|$work/small/model|g; s|LIGHT|$work/light/model|g" <<<"$1"; }
key() { printf '%s.%s.%s' "$1" "$test" "$2" | tr ':=' '_-'; }

decode() {
  mkdir -p "$work/out"
  local name spec flags file
  while IFS=$'\t' read -r _ name spec flags; do
    file=$work/out/$(key "$name" "$spec")
    [ ! "$file" -nt "$work/$name/model/config.json" ] || continue
    # shellcheck disable=SC2046
    later attempt "${file##*/}" resumed "$file" nartk-decode "$work/$name/model" "$work/text/$test.src" \
      $(named "$flags") "${limit[@]}" --device "$device" --truncate --quiet --stats "$file.json"
  done < <(ways decode)
  wait
}

# write FILE COMMAND...: its output, whole or not at all.
write() {
  local file=$1
  shift
  "$@" >"$file.part" && mv "$file.part" "$file"
}

score() {
  mkdir -p "$work/scores"
  local name spec file metric source
  while IFS=$'\t' read -r _ name spec _; do
    file=$(key "$name" "$spec")
    [ -e "$work/out/$file" ] || continue
    for metric in "${metrics[@]}"; do
      source=()
      [ "$metric" != sari ] || source=(--source "$work/text/$test.src")
      [ ! "$work/scores/$file.$metric.json" -nt "$work/out/$file" ] || continue
      later attempt "$file.$metric" write "$work/scores/$file.$metric.json" nartk-score "$metric" \
        "$work/out/$file" "${source[@]}" --json --ref "$work/text/$test".ref*
    done
  done < <(ways decode)
  wait
}

speed() {
  local name spec
  while IFS=$'\t' read -r _ name spec _; do
    [ -e "$work/out/$(key "$name" "$spec")" ] || continue
    printf '%s\t%s\t%s:max_len=%s\n' "$(key "$name" "$spec")" "$work/$name/model" "$(named "$spec")" "${limit[1]}"
  done < <(ways decode) | python "$here/../mt/speed.py" --source "$work/text/$test.src" \
    --output "$work/speed.$test.json" --device "$device" "${speed[@]}"
}

table() {
  python "$here/report.py" --work "$work" --test "$test"
}

# What is decoded is done for each test set.
mark() {
  case $1 in
    decode | score | speed | table) echo "$1.$test" ;;
    *) echo "$1" ;;
  esac
}

python "$here/ways.py" --updates "$drafter_updates" >"$work/ways.tsv"
ways missing | while IFS=$'\t' read -r _ name spec reason; do
  echo "run.sh: left out: $name $spec: $reason" >&2
done
run_stages "$chosen" "${stages[@]}"
