# CMLM (Ghazvininejad et al. 2019, arxiv.org/abs/1904.09324, section 3.3): 128,000 tokens a step, 300,000
# steps, dropout 0.3 as in fairseq's script of it; on distilled data.
source "$here/nat.sh"
flags+=(--glancing-strategy cmlm)
batch=(--max-tokens 8000 --update-freq 2 --max-update 300000)
