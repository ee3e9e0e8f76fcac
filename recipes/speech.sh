# Sourced by the recipes of speech: systems that train on sound, are decoded, scored and timed.
# shellcheck shell=bash
#
# It reads of the recipe, besides what stages.sh does: here (its folder), device, dtype, frames (of a step), d_model,
# heads, the arrays size and masks (flags of training), metrics (of nartk-score) and speed (flags of speed.py), and
# systems.tsv in its work folder. A system may have data of its own, data.SYSTEM; its part SYSTEM.PART is tested on
# data.SYSTEM/test.PART, whose outputs begin with words such as <asr>, which are not scored.

# systems WHAT: the lines of systems.tsv that begin with WHAT.
systems() { grep -P "^$1\t" "$work/systems.tsv" || true; }
key() { printf '%s.%s' "$1" "$2" | tr ':=' '_-'; }

tell_missing() {
  systems missing | while IFS=$'\t' read -r _ name spec reason; do
    echo "run.sh: left out: $name $spec: $reason" >&2
  done
}

# fit NAME ARCHITECTURE UPDATES FLAGS...: trains, and writes $work/NAME/model.
fit() {
  local name=$1 architecture=$2 most=$3 data=$work/data
  shift 3
  [ ! -d "$data.$name" ] || data=$data.$name
  # A model of CTC alone has no decoder.
  local layers=(--decoder-layers 1 --decoder-heads "$heads" --decoder-ffn $((3 * d_model)))
  [ "$architecture" != owsm_ctc ] || layers=()
  nartk-train "$data" --task nartk_speech --arch "nartk_$architecture" --criterion nartk_speech "${place[@]}" \
    "${size[@]}" "${layers[@]}" --dropout 0.1 "${masks[@]}" --max-tokens "$frames" \
    --fix-batch-norm $((most / 2)) --optimizer nartk_adamw \
    --adam-betas '(0.9, 0.98)' --weight-decay 0.01 --clip-norm 1.0 --lr-scheduler polynomial_decay --lr 0.0015 \
    --warmup-updates $((most / 8)) --total-num-update "$most" --max-update "$most" --seed 1 --num-workers 0 \
    --save-dir "$work/$name/checkpoints" --save-interval-updates $(((most + 3) / 4)) --keep-interval-updates 1 \
    --no-epoch-checkpoints --log-format simple --log-interval 25 "$@"
  nartk-convert "$work/$name/checkpoints/checkpoint_last.pt" --output "$work/$name/model" \
    --dict "$data/dict.txt" --dtype fp16
}

# One system: what fails leaves a mark and its log, and the others go on.
system() {
  local name=$1 architecture=$2 most=$3 flags=$4
  # shellcheck disable=SC2086
  logged "$name" "$name" "$work/$name/log" fit "$name" "$architecture" "$most" ${flags//WORK/$work}
}

# All systems that are not trained yet.
models() {
  local name architecture flags
  while IFS=$'\t' read -r _ name architecture flags; do
    [ -e "$work/$name/model/config.json" ] || later system "$name" "$architecture" "$others" "$flags"
  done < <(systems model)
  wait
}

# Names of systems in capitals become their folders.
folders() { sed -E "s#(drafter[= ])([A-Z][A-Z-]*)#\1$work/\L\2/model#g"; }

# Each way to decode each model that is there: NAME SPEC FOLDER FLAGS.
runs() {
  local name spec flags part folder
  while IFS=$'\t' read -r _ name spec flags; do
    flags=$(folders <<<"$flags")
    for part in $flags; do
      [[ $part != "$work"/* || -e $part/config.json ]] || continue 2
    done
    folder=$work/${name%%.*}/model
    [ -e "$folder/config.json" ] || continue
    printf '%s\t%s\t%s\t%s\n' "$name" "$spec" "$folder" "$flags"
  done < <(systems decode)
}

# tested NAME: what it is tested on, a list of sounds and a text of this name.
tested() {
  case $1 in
    *.*) echo "$work/data.${1%%.*}/test.${1#*.}" ;;
    *) echo "$work/data/test" ;;
  esac
}

decode() {
  mkdir -p "$work/out"
  local name spec folder flags file list
  while IFS=$'\t' read -r name spec folder flags; do
    file=$work/out/$(key "$name" "$spec")
    [ ! "$file" -nt "$folder/config.json" ] || continue
    list=$(tested "$name")
    [ -e "$list.lst" ] && list=$list.lst || list=$list.tsv
    # shellcheck disable=SC2086
    later attempt "${file##*/}" resumed "$file" nartk-decode "$folder" --manifest "$list" $flags --device "$device" \
      --dtype "$dtype" --quiet --stats "$file.json"
  done < <(runs)
  wait
}

# score_one FILE METRIC OUTPUT REFERENCE
score_one() {
  nartk-score "$2" <(untagged "$3") --json --ref <(untagged "$4") >"$1.part" && mv "$1.part" "$1"
}
untagged() { sed -E 's/^(<[a-z_]+> *)+//' "$1"; }

score() {
  mkdir -p "$work/scores"
  local name spec file metric
  while IFS=$'\t' read -r name spec _ _; do
    file=$(key "$name" "$spec")
    [ -e "$work/out/$file" ] || continue
    for metric in "${metrics[@]}"; do
      [ ! "$work/scores/$file.$metric.json" -nt "$work/out/$file" ] || continue
      later attempt "$file.$metric" score_one "$work/scores/$file.$metric.json" "$metric" "$work/out/$file" \
        "$(tested "$name").txt"
    done
  done < <(runs)
  wait
}

speed() {
  local name spec folder
  while IFS=$'\t' read -r name spec folder _; do
    [[ $name == *.* ]] || printf '%s\t%s\t%s\n' "$(key "$name" "$spec")" "$folder" "$(folders <<<"$spec")"
  done < <(runs) | env -u OMP_NUM_THREADS python "$here/../asr/speed.py" --manifest "$work/data/test.tsv" \
    --output "$work/speed.json" --device "$device" --dtype "$dtype" "${speed[@]}"
}

table() {
  python "$here/table.py" --work "$work"
}

mark() { echo "$1"; }
