# Sourced by run.sh: an aligner of English, and how far its borders are from another aligner's.
# shellcheck shell=bash
stages=(prepare first align score)
targets=(en)

describe() {
  python "$here/speakers.py" | grep -P '^model\taligner\t' >"$work/systems.tsv"
}

prepare() {
  python "$here/borders.py" --output "$work" ${samples:+--samples "$samples"} ${quick:+--quick}
}

first() { train aligner "$updates"; }

align() {
  nartk-align "$work/aligner/model" "$work/data.read/test.tsv" --output "$work/aligned" --sample-rate 16000 \
    --high 7600 --quiet
}

score() {
  python "$here/borders.py" --output "$work" --score | tee "$work/borders.txt"
}
