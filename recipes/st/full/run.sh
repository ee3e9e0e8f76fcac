#!/usr/bin/env bash
# MuST-C English-German at full size, with the published hyper-parameters:
#
#   recipes/st/full/run.sh CONFIG DATA SAVE-DIR [nartk-train's options]
#   recipes/st/full/run.sh --dry-run [CONFIG ...]
#
# CONFIG is the name of a file beside this one without .sh; each was written for one GPU (on several, lower
# --update-freq). DATA is what recipes/st/mustc.py wrote of the corpus, which you have. --dry-run parses the
# configurations, builds their models at full size on a CPU and takes one step on a few sounds.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../../speech_full.sh
source "$here/../../speech_full.sh"

usage() { sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
dry_data() { python "$here/../prepare.py" --target de --quick --output "$1"; }

published "$@"
