# MuST-C English-German, DA-Transformer as DASpeech trains its first part (Fang et al. 2023, arxiv.org/abs/
# 2310.07403; the command "S2TT DA-Transformer Pretraining" in the README of github.com/ictnlp/DASpeech, there on
# phonemes of CVSS-C): encoder and decoder of 256 and 512 features, half a vertex a frame, glancing from 0.5 to 0.1
# in 100,000 steps of 320,000 frames. There two convolutions of kernel 5 subsample, weights begin as BERT's, and
# the encoder has no CTC head (--ctc-weight 0: none is trained).
architecture=speech_dag
flags=(--d-model 256 --decoder-features 512 --encoder-layers 12 --decoder-layers 4 --encoder-ffn 2048
  --decoder-ffn 2048 --encoder-heads 4 --decoder-heads 8 --conv-kernel 31 --subsampling 4 --activation gelu
  --decoder-positions learned --decoder-input mask --upsample-scale 2 --link-features feature:position
  --max-target-len 1024 --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1 --ctc-weight 0
  --label-smoothing 0 --glancing 0.5:0.1@100k --weight-decay 0.01 --clip-norm 1.0 --lr 0.0005 --warmup-updates 10000
  --time-masks 1 --time-width 100 --bin-masks 1 --bin-width 27)
batch=(--max-tokens 40000 --update-freq 8 --max-update 100000)
