#!/usr/bin/env bash
# Speech translation, autoregressive and not, from sound to a table of quality and speed:
#
#   recipes/st/run.sh [--task text|speech|borders] [--target LANGUAGE] [--quick] [--work DIR] [--device cpu|cuda]
#                     [--stage NAME[,NAME...]] [--only NAME,...] [--d-model N] [--updates N] [--others-updates N]
#                     [--frames N] [--dtype fp32|bf16|int8] [--jobs N] [--without SPEAKER] [--copies N] [--anew N]
#                     [--new N] [--no-masks] [--voice prompts|espeak] [--samples FOLDER]
#
# Stages of text: prepare first models decode score verify speed table; of speech: prepare recogniser first align
# models joint decode score table; of borders: prepare first align score. A stage that has finished is not run
# again; --stage runs the stages it names, finished or not, and no others. Training and the models within their
# stage go on where they were broken off.
#   --task     text: spoken English numbers become German or French words (default)
#              speech: they become French, Spanish or Italian speech, by phonemes
#              borders: a model that learns English phonemes of synthetic voices aligns sentences that people read
#   --target   language of the output: of text de, fr or en, which is recognition (default de), of speech fr, es or
#              it (default fr)
#   --without  a speaker who does not train, and is the only one that is tested
#   --copies   of each number that trains, all but one changed (default 2)
#   --anew     times that each is said anew of other recordings, at other speeds and levels, by other
#              microphones, in noise (default 0)
#   --new      numbers that the corpus has not, said as its own (default 12000, --quick 100)
#   --no-masks train without masks over spectrograms (SpecAugment)
#   --quick    small models on 400 numbers, few updates: every stage for real, in minutes on two cores
#   --voice    whose speech is learned: prompts, a person's number words, put together (default); or espeak, whole
#              numbers by espeak-ng
#   --samples  of borders, a folder of recordings and of the borders that pocketsphinx found (borders.py)
#   --only     these systems of text alone, of ctc, ctc-sc, owsm, ctc-decoder, ctc-glat, dag, ar; all begin with ctc
#   --d-model  width of all models (default 128; --quick 64)
#   --updates  of ctc, with whose encoder the others begin (default 3000, --quick 40)
#   --others-updates  of each other system (default half of that)
#   --frames   of sound in a step, 10 ms each (default 4000)
#   --dtype    in which sound is translated (default fp32)
#   --jobs     trainings and decodings at a time (default 2, with cuda 1); speed is measured one at a time
# Needs the extras train, score and audio (README.md, "Install"). MuST-C: recipes/st/full/run.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../stages.sh
source "$here/../stages.sh"
# shellcheck source=../speech.sh
source "$here/../speech.sh"
task=text target= quick= work= device=cpu only= d_model= updates= others= frames=4000 dtype=fp32 jobs= chosen=
without= copies= anew=0 new= voice=prompts samples=
# SpecAugment, as in recipes/asr.
masks=(--time-width 10 --bin-width 8)

usage() { sed -n '2,34s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1; shift; continue ;;
    --no-masks) masks=(--time-masks 0 --bin-masks 0); shift; continue ;;
    -h | --help) usage; exit 0 ;;
    --task | --target | --work | --device | --stage | --only | --d-model | --updates | --others-updates | --frames | --dtype | --jobs | --without | --copies | --anew | --new | --voice | --samples)
      [ $# -gt 1 ] || die "$1 needs a value" ;;
    *) usage >&2; die "unknown option $1" ;;
  esac
  case $1 in
    --task) task=$2 ;;
    --target) target=$2 ;;
    --work) work=$2 ;;
    --device) device=$2 ;;
    --stage) chosen=${2//,/ } ;;
    --only) only=$2 ;;
    --d-model) d_model=$2 ;;
    --updates) updates=$2 ;;
    --others-updates) others=$2 ;;
    --frames) frames=$2 ;;
    --dtype) dtype=$2 ;;
    --jobs) jobs=$2 ;;
    --without) without=$2 ;;
    --copies) copies=$2 ;;
    --anew) anew=$2 ;;
    --new) new=$2 ;;
    --voice) voice=$2 ;;
    --samples) samples=$2 ;;
  esac
  shift 2
done
[[ $task == text || $task == speech || $task == borders ]] || die "no task '$task': choose from text, speech, borders"

# train NAME UPDATES: a system of the list, where it is not trained yet.
train() {
  local name architecture flags
  [ ! -e "$work/$1/model/config.json" ] || return 0
  IFS=$'\t' read -r _ name architecture flags <<<"$(systems model | grep -P "^model\t$1\t")"
  system "$name" "$architecture" "$2" "$flags"
}

# shellcheck source=into_text.sh
source "$here/into_$task.sh"
: "${target:=${targets[0]}}"
[[ " ${targets[*]} " == *" $target "* ]] || die "no target '$target' of $task: choose from ${targets[*]}"
[[ $voice == prompts || $voice == espeak ]] || die "no voice '$voice': choose from prompts, espeak"
require "$chosen" train,score,audio "${stages[@]}"
[ -n "$work" ] || work=runs/st-$task-$target${without:+-without-$without}${quick:+-quick}
mkdir -p "$work"

if [ -n "$quick" ]; then
  : "${updates:=40}" "${d_model:=64}" "${copies:=1}" "${new:=100}"
  heads=2 size=(--encoder-layers 4 --subsampling-channels 8)
  speed=(--rounds 2 --single 5 --many 30 --threads 1) batches=1,8
else
  : "${updates:=3000}" "${d_model:=128}" "${copies:=2}" "${new:=12000}"
  heads=4 size=(--encoder-layers 4 --subsampling-channels 32)
  speed=(--rounds 3 --single 100 --many 500 --threads 1) batches=1,8,32
fi
: "${others:=$(((updates + 1) / 2))}"
size+=(--d-model "$d_model" --encoder-ffn $((3 * d_model)) --encoder-heads "$heads" --conv-kernel 15
  --input-features 40 --max-source-len 2000 --max-target-len 128)
train_on "$device"
: "${jobs:=$([ "$device" = cpu ] && echo 2 || echo 1)}"
# With several trainings at a time, each on its own core.
[ "$jobs" = 1 ] || export OMP_NUM_THREADS=1

describe
run_stages "$chosen" "${stages[@]}"
