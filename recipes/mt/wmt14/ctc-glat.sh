# CTC with glancing (Gu & Kong 2021, arxiv.org/abs/2012.15833, section 4; Qian et al. 2021): upsampling 2,
# no label smoothing, else as glat.sh.
source "$here/glat.sh"
kind=ctc
flags=("${flags[@]/soft-copy/source}")
flags+=(--upsample 2 --label-smoothing 0 --length-factor 0)
