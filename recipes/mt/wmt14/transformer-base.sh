# The teacher: Transformer base (Vaswani et al. 2017, arxiv.org/abs/1706.03762, sections 3 and 5, table 3):
# post-norm, 25,000 target tokens a step, 100,000 steps, peak rate 512^-0.5 * 4000^-0.5.
kind=transformer
flags=(--d-model 512 --encoder-layers 6 --decoder-layers 6 --encoder-ffn 2048 --decoder-ffn 2048
  --encoder-heads 8 --decoder-heads 8 --no-encoder-norm-first --no-decoder-norm-first --dropout 0.1
  --criterion nartk_cross_entropy --label-smoothing 0.1 --optimizer nartk_adamw --adam-betas '(0.9, 0.98)'
  --adam-eps 1e-9 --lr 0.0007 --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7)
batch=(--max-tokens 3125 --max-update 100000)
