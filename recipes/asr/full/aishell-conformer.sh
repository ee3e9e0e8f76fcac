# AISHELL-1, Conformer with attention and CTC as ESPnet trains it (egs2/aishell/asr1/conf/tuning/
# train_asr_conformer_e12_amp.yaml, github.com/espnet/espnet; the encoder is that of Gulati et al. 2020,
# arxiv.org/abs/2005.08100): 156,000 frames a step, 60 epochs of sound at three speeds. There the decoder attends
# without dropout, and has more of it on positions.
architecture=conformer
flags=(--d-model 256 --encoder-layers 12 --decoder-layers 6 --encoder-ffn 2048 --decoder-ffn 2048
  --encoder-heads 4 --decoder-heads 4 --conv-kernel 31 --subsampling 4 --share-embeddings none
  --norm-eps 1e-12 --batch-norm-eps 1e-5 --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1
  --ctc-weight 0.3 --label-smoothing 0.1 --clip-norm 5 --lr 0.001 --warmup-updates 35000
  --time-masks 10 --time-width 10000 --time-share 0.05 --bin-masks 2 --bin-width 27 --speeds 0.9,1.0,1.1)
batch=(--max-tokens 39000 --update-freq 4 --max-update 62000)
