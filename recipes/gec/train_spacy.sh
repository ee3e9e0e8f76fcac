#!/usr/bin/env bash
# Trains the spaCy pipeline of `nartk-score errant` from UD English EWT, on one CPU thread.
#
#   recipes/gec/train_spacy.sh TREEBANK [--dev FILE] [--output DIR] [--quick]
#
# TREEBANK is the treebank's folder or its train file; NARTK_UD_EWT may name it instead.
set -euo pipefail
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "${PYTHON:-python}" "$(dirname "${BASH_SOURCE[0]}")/train_spacy.py" "$@"
