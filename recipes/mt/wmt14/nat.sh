# Vanilla NAT as fairseq trains it (examples/nonautoregressive_translation/scripts.md): mask inputs, learned
# positions, 64,000 tokens a step, 300,000 steps; on distilled data. fairseq's initialisation differs.
kind=nat
flags=(--d-model 512 --encoder-layers 6 --decoder-layers 6 --encoder-ffn 2048 --decoder-ffn 2048
  --encoder-heads 8 --decoder-heads 8 --no-encoder-norm-first --no-decoder-norm-first --dropout 0.3
  --encoder-positions learned --decoder-positions learned --decoder-input mask
  --criterion nartk_nar --label-smoothing 0.1 --length-factor 0.1 --glancing 0
  --optimizer nartk_adamw --adam-betas '(0.9, 0.98)' --weight-decay 0.01 --lr 0.0005
  --lr-scheduler inverse_sqrt --warmup-updates 10000 --warmup-init-lr 1e-7)
batch=(--max-tokens 8000 --max-update 300000)
