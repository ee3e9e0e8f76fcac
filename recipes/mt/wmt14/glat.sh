# GLAT (Qian et al. 2021, arxiv.org/abs/2008.07905, section 4.1, and the command in the README of its
# repository, github.com/FLC777/GLAT): glancing from 0.5 to 0.3, dropout 0.1, 64,000 tokens a step, warm-up of
# 4,000 steps to 5e-4, gradients clipped at 5, length loss 0.05; on distilled data.
kind=nat
flags=(--d-model 512 --encoder-layers 6 --decoder-layers 6 --encoder-ffn 2048 --decoder-ffn 2048
  --encoder-heads 8 --decoder-heads 8 --no-encoder-norm-first --no-decoder-norm-first --dropout 0.1
  --activation gelu --encoder-positions learned --decoder-positions learned --decoder-input soft-copy
  --criterion nartk_nar --label-smoothing 0.1 --length-factor 0.05 --glancing 0.5:0.3@300k
  --optimizer nartk_adamw --adam-betas '(0.9, 0.999)' --adam-eps 1e-6 --weight-decay 0.01
  --clip-norm 5 --lr 0.0005 --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7)
batch=(--max-tokens 8192 --max-update 300000)
