# Sourced by run.sh: the stages of translation into text.
# shellcheck shell=bash
stages=(prepare first models decode score verify speed table)
targets=(de fr en)
metrics=(bleu wer ser)

describe() {
  python "$here/translators.py" --updates "$others" --only "$only" >"$work/systems.tsv"
  tell_missing
}

prepare() {
  local tasks=
  [ -z "$(systems model | grep -P '^model\towsm\t')" ] || tasks=1
  python "$here/prepare.py" --target "$target" --output "$work" --copies "$copies" --anew "$anew" --new "$new" \
    --without "$without" ${tasks:+--tasks} ${quick:+--quick}
}

# CTC, with whose encoder all others begin.
first() {
  local name architecture flags
  IFS=$'\t' read -r _ name architecture flags <<<"$(python "$here/translators.py" --only ctc | grep -P '^model\t')"
  [ -e "$work/$name/model/config.json" ] || system "$name" "$architecture" "$updates" "$flags"
  [ -e "$work/$name/model/config.json" ] || die "nothing for the other systems to begin with"
}

# Strategies that promise greedy search's output: are they equal to it, and in how many passes?
verify() {
  mkdir -p "$work/verified"
  local name spec folder flags file types=fp32,int8
  ! grep -qsE '^(flags|Features).*\<(avx512_bf16|amx_bf16|bf16)\>' /proc/cpuinfo || types=fp32,bf16,int8
  [ "$device" = cpu ] || types=fp32,bf16
  while IFS=$'\t' read -r name spec folder flags; do
    [[ $spec == gad* || $spec == ctc-draft* ]] || continue
    file=$work/verified/$(key "$name" "$spec")
    [ ! "$file" -nt "$folder/config.json" ] || continue
    # shellcheck disable=SC2086
    later attempt "${file##*/}.verified" verify_one "$file" "$folder" "$(tested "$name").tsv" $flags \
      --device "$device" --dtype "$types" --batch-size "$batches"
  done < <(runs)
  wait
}

# verify_one FILE FOLDER LIST FLAGS...
verify_one() {
  nartk-verify "$2" "$3" --format manifest "${@:4}" >"$1.part" && mv "$1.part" "$1"
}
