#!/usr/bin/env bash
# Speech recognition, autoregressive and not, from sound to a table of error rates and speed:
#
#   recipes/asr/run.sh [--corpus numbers|an4|yesno] [--quick] [--work DIR] [--device cpu|cuda]
#                      [--stage NAME[,NAME...]] [--only NAME,...] [--d-model N] [--updates N]
#                      [--others-updates N] [--dtype fp32|bf16|int8] [--jobs N] [--without SPEAKER]
#
# Stages: prepare first models decode score speed table. A stage that has finished is not run again; --stage runs
# the stages it names, finished or not, and no others. Training and the models within their stage go on where
# they were broken off.
#   --corpus   numbers (default): connected spoken digits; an4: letters, numbers and words; yesno: two words
#   --without  a speaker who does not train, and is the only one that is tested (numbers, an4)
#   --quick    small models on 400 sounds, few updates: every stage for real, in minutes on two cores
#   --only     these systems alone, of ctc, paraformer, ar, ctc-sc, paraformer-ce, paraformer-mwer; the first
#              stage trains ctc, and paraformer if one is named, with which the others begin
#   --d-model  width of all models (default 128; --quick 64)
#   --updates  of ctc, with whose encoder the others begin (default 3000, --quick 40)
#   --others-updates  of each other system (default a third of that; attention and CTC twice as many)
#   --dtype    in which sound is recognised (default fp32)
#   --jobs     trainings and decodings at a time (default 2, with cuda 1); speed is measured one at a time
# Needs the extras train, score and audio (README.md, "Install"). Larger corpora: recipes/asr/full/run.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../stages.sh
source "$here/../stages.sh"
# shellcheck source=../speech.sh
source "$here/../speech.sh"
stages=(prepare first models decode score speed table)
corpus=numbers quick= work= device=cpu only= d_model= updates= others= dtype=fp32 jobs= chosen= without=
metrics=(wer cer)

usage() { sed -n '2,22s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1; shift; continue ;;
    -h | --help) usage; exit 0 ;;
    --corpus | --work | --device | --stage | --only | --d-model | --updates | --others-updates | --dtype | --jobs | --without)
      [ $# -gt 1 ] || die "$1 needs a value" ;;
    *) usage >&2; die "unknown option $1" ;;
  esac
  case $1 in
    --corpus) corpus=$2 ;;
    --work) work=$2 ;;
    --device) device=$2 ;;
    --stage) chosen=${2//,/ } ;;
    --only) only=$2 ;;
    --d-model) d_model=$2 ;;
    --updates) updates=$2 ;;
    --others-updates) others=$2 ;;
    --dtype) dtype=$2 ;;
    --jobs) jobs=$2 ;;
    --without) without=$2 ;;
  esac
  shift 2
done
copies=1 anew=0
case $corpus in
  numbers) anew=12000 bins=40 masks=(--time-width 10 --bin-width 8) ;;
  yesno) copies=4 bins=40 masks=(--time-width 10 --bin-width 8) ;;
  # Features have no sound to change, but a tempo.
  an4) bins=13 masks=(--time-width 25 --bin-width 3 --speeds 0.9,1.0,1.1) ;;
  *) die "no corpus '$corpus': choose from numbers, an4, yesno" ;;
esac
require "$chosen" train,score,audio "${stages[@]}"
[ -n "$work" ] || work=runs/asr-$corpus${without:+-without-$without}${quick:+-quick}
mkdir -p "$work"

if [ -n "$quick" ]; then
  : "${updates:=40}" "${d_model:=64}"
  copies=1 anew=$((anew / 100)) heads=2 size=(--encoder-layers 3 --subsampling-channels 8)
  frames=4000 speed=(--rounds 2 --single 5 --many 30 --threads 1)
else
  : "${updates:=3000}" "${d_model:=128}"
  heads=4 size=(--encoder-layers 4 --subsampling-channels 32)
  frames=4000 speed=(--rounds 3 --single 100 --many 500 --threads 1)
fi
: "${others:=$(((updates + 2) / 3))}"
size+=(--d-model "$d_model" --encoder-ffn $((3 * d_model)) --encoder-heads "$heads" --conv-kernel 15
  --input-features "$bins" --max-source-len 2000 --max-target-len 128)
train_on "$device"
: "${jobs:=$([ "$device" = cpu ] && echo 2 || echo 1)}"
# With several trainings at a time, each on its own core.
[ "$jobs" = 1 ] || export OMP_NUM_THREADS=1

prepare() {
  python "$here/prepare.py" --corpus "$corpus" --output "$work/data" --copies "$copies" --varied "$anew" \
    --without "$without" ${quick:+--quick}
}

describe() {
  python "$here/recognizers.py" --updates "$others" --only "$only" >"$work/systems.tsv"
  tell_missing
}

# Those that others begin with: CTC, whose encoder all do, and the Paraformer, which MWER training does.
first() {
  local name architecture flags most=$updates begin=ctc,paraformer
  [ -z "$only" ] || [[ $only == *paraformer* ]] || begin=ctc
  while IFS=$'\t' read -r _ name architecture flags; do
    system "$name" "$architecture" "$most" "$flags"
    [ -e "$work/$name/model/config.json" ] || die "nothing for the other systems to begin with"
    most=$others
  done < <(python "$here/recognizers.py" --only "$begin" | grep -P '^model\t')
}

describe
run_stages "$chosen" "${stages[@]}"
