# Sourced by the scripts that train published configurations, each a file beside them that sets flags.
# shellcheck shell=bash
#
# It reads of the script: here, its folder.

configs() { find "$here" -name '*.sh' ! -name run.sh -exec basename {} .sh \; | sort; }

# load NAME: sets what the configuration sets.
load() {
  [ -e "$here/$1.sh" ] || { echo "run.sh: no configuration '$1': choose from $(configs | tr '\n' ' ')" >&2; exit 2; }
  # shellcheck disable=SC1090
  source "$here/$1.sh"
}

# one_step NAME LOG COMMAND...: trains a configuration for one update, and says so, or why not.
one_step() {
  local name=$1 log=$2
  shift 2
  if ! "$@" --max-update 1 --cpu --no-save --disable-validation --num-workers 0 --log-interval 1 >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "run.sh: $name: failed" >&2
    return 1
  fi
  if ! grep -q '| num_updates 1 |' "$log"; then
    tail -n 5 "$log" >&2
    echo "run.sh: $name: took no step" >&2
    return 1
  fi
  echo "$name: $(grep -o 'model params: [0-9,]*' "$log" | head -n 1), one step," \
    "$(grep -o 'loss -\?[0-9.]*' "$log" | head -n 1)"
}
