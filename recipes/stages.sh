# Sourced by the recipes' scripts: stages that run once, training, decoding, and jobs beside each other.
# shellcheck shell=bash
#
# It reads of the recipe: work (its folder), jobs (most at a time), src and trg (the sides of the corpus), and
# the array schedule (learning rate and what goes with it).

die() { echo "${0##*/}: $*" >&2; exit 2; }

# require CHOSEN EXTRAS STAGE...: refuses stages of CHOSEN that there are not, and a machine without nartk.
require() {
  local chosen=$1 extras=$2 name command
  shift 2
  for name in $chosen; do
    [[ " $* " == *" $name "* ]] || die "no stage '$name': choose from $*"
  done
  for command in nartk-train nartk-distill; do
    command -v $command >/dev/null ||
      die "nartk is not installed: pip install '.[$extras]' && pip install --no-deps fairseq==0.12.2"
  done
}

# train_on DEVICE: sets the array place, the flags of training for device and precision.
train_on() {
  place=(--autocast bf16)
  [ "$1" = cpu ] || return 0
  place+=(--cpu)
  # Without instructions for it bf16 is emulated, and a step takes three times as long as in fp32.
  grep -qsE '^(flags|Features).*\<(avx512_bf16|amx_bf16|bf16)\>' /proc/cpuinfo || place=(--cpu)
  # Huge pages, and none given back: with glibc's defaults a step of training spends up to 40 % on page faults.
  export GLIBC_TUNABLES=glibc.malloc.hugetlb=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000
}

# later COMMAND...: runs it beside at most $jobs - 1 others.
later() {
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
  "$@" &
}

# attempt NAME COMMAND...: what fails leaves a mark, and the run goes on.
attempt() {
  local name=$1
  shift
  rm -f "$work/failed/$name"
  "$@" || touch "$work/failed/$name"
}

# logged NAME WHAT LOG COMMAND...: runs it with a log of its own, and says how long WHAT took; if it fails, which
# NAME's mark and the end of its log tell, the run goes on.
logged() {
  local name=$1 what=$2 log=$3 start=$SECONDS status
  shift 3
  mkdir -p "${log%/*}"
  rm -f "$work/failed/$name"
  set +e # not in the condition below, where the first error of a function would not end it
  (
    set -e
    "$@"
  ) >"$log" 2>&1 </dev/null # not what a loop around it reads
  status=$?
  set -e
  if [ $status = 0 ]; then
    echo "   $what: $((SECONDS - start)) s" >&2
  else
    touch "$work/failed/$name"
    echo "${0##*/}: $what failed: $log ends with" >&2
    tail -n 2 "$log" | cut -c 1-400 >&2
  fi
}

# resumed FILE COMMAND...: nartk-decode with its flags, to FILE. A run that was broken off goes on after the lines in
# FILE.journal; where that is of another model, or of other options or inputs, all lines are decoded anew.
resumed() {
  local file=$1 status=0
  shift
  "$@" --output "$file" --resume || status=$?
  if [ $status = 4 ] && [ -e "$file.journal" ]; then
    echo "${0##*/}: decoding ${file##*/} anew" >&2
    rm "$file.journal"
    status=0
    "$@" --output "$file" --resume || status=$?
  fi
  return $status
}

converting=() # further options of nartk-convert, for fit
# fit FOLDER KIND UPDATES FLAGS...: trains, and writes FOLDER/model; of flags that are given twice the last counts.
fit() {
  local folder=$1 kind=$2 most=$3
  shift 3
  local criterion=(--criterion nartk_nar)
  [ "$kind" != transformer ] || criterion=(--criterion nartk_cross_entropy)
  nartk-train "$work/bin" --task nartk_translation --source-lang "$src" --target-lang "$trg" --arch "nartk_$kind" \
    "${place[@]}" "${criterion[@]}" --label-smoothing 0.1 --optimizer nartk_adamw --adam-betas '(0.9, 0.98)' \
    --weight-decay 0.01 --clip-norm 1.0 --lr-scheduler polynomial_decay "${schedule[@]}" \
    --total-num-update "$most" --max-update "$most" --skip-invalid-size-inputs-valid-test --seed 1 --num-workers 0 \
    --save-dir "$folder/checkpoints" --save-interval-updates $((most / 8)) --keep-interval-updates 1 \
    --no-epoch-checkpoints --log-format simple "$@"
  nartk-convert "$folder/checkpoints/checkpoint_last.pt" --output "$folder/model" --dict "$work/text/dict.txt" \
    --spm "$work/text/spm.model" "${converting[@]}"
}

# run_stages CHOSEN STAGE...: runs those of CHOSEN, else those that have not finished, and says how long each took.
# `mark STAGE` of the recipe names what says that a stage has finished.
run_stages() {
  local chosen=$1 stage start finished
  shift
  mkdir -p "$work/done" "$work/failed"
  for stage in "$@"; do
    finished=$work/done/$(mark "$stage")
    if [ -n "$chosen" ]; then
      [[ " $chosen " == *" $stage "* ]] || continue
    elif [ -e "$finished" ]; then
      echo "== $stage: done before" >&2
      continue
    fi
    echo "== $stage" >&2
    start=$SECONDS
    "$stage"
    touch "$finished"
    echo "== $stage: $((SECONDS - start)) s" >&2
  done
  if [ -n "$(ls "$work/failed")" ]; then
    echo "${0##*/}: failed: $(ls "$work/failed" | tr '\n' ' ')" >&2
    exit 1
  fi
}
