# DA-Transformer (Huang et al. 2022, arxiv.org/abs/2205.07459, section 4.1, and the command in its
# repository's README): upsampling 8, glancing from 0.5 to 0.1 in 200,000 steps, 64,000 tokens a step; raw data.
kind=dag
flags=(--d-model 512 --encoder-layers 6 --decoder-layers 6 --encoder-ffn 2048 --decoder-ffn 2048
  --encoder-heads 8 --decoder-heads 8 --no-encoder-norm-first --no-decoder-norm-first --dropout 0.1
  --activation gelu --encoder-positions learned --decoder-positions learned --max-source-len 128
  --max-target-len 1024 --upsampling source --upsample-scale 8 --link-features feature:position
  --criterion nartk_nar --label-smoothing 0 --length-factor 0 --glancing 0.5:0.1@200k
  --optimizer nartk_adamw --adam-betas '(0.9, 0.999)' --weight-decay 0.01 --clip-norm 0.1 --lr 0.0005
  --lr-scheduler inverse_sqrt --warmup-updates 10000 --warmup-init-lr 1e-7)
batch=(--max-tokens 4096 --update-freq 2 --max-update 300000)
