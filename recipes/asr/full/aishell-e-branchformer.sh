# AISHELL-1, E-Branchformer (Kim et al. 2022, arxiv.org/abs/2210.00077) as ESPnet trains it (egs2/aishell/asr1/
# conf/tuning/train_asr_e_branchformer_e12_mlp1024_linear1024_mactrue_amp.yaml): else as the Conformer.
source "$here/aishell-conformer.sh"
flags+=(--encoder-block e-branchformer --encoder-ffn 1024 --cgmlp-features 1024 --merge-kernel 31)
