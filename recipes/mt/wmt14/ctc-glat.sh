# CTC with glancing (Gu & Kong 2021, arxiv.org/abs/2012.15833, section 4; Qian et al. 2021): upsampling 2,
# no label smoothing, else as glat.sh, with 128,000 tokens a step as github.com/chenyangh/DSLP trains it.
source "$here/glat.sh"
kind=ctc
flags=("${flags[@]/soft-copy/source}")
flags+=(--upsample 2 --label-smoothing 0 --length-factor 0)
batch=(--max-tokens 8192 --update-freq 2 --max-update 300000)
