# LibriSpeech, 960 hours, E-Branchformer (Kim et al. 2022, arxiv.org/abs/2210.00077) as ESPnet trains it
# (egs2/librispeech/asr1/conf/tuning/train_asr_e_branchformer.yaml, github.com/espnet/espnet): 875,000 frames a
# step, 80 epochs of sound at three speeds; 5,000 pieces. There layers are left out at random too, one in ten of
# the encoder's and two in ten of the decoder's.
architecture=conformer
flags=(--d-model 512 --encoder-layers 17 --decoder-layers 6 --encoder-ffn 1024 --decoder-ffn 2048
  --encoder-heads 8 --decoder-heads 8 --encoder-block e-branchformer --cgmlp-features 3072 --conv-kernel 31
  --merge-kernel 31 --subsampling 4 --share-embeddings none
  --norm-eps 1e-12 --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1
  --ctc-weight 0.3 --label-smoothing 0.1 --clip-norm 5 --lr 0.002 --warmup-updates 40000
  --time-masks 10 --time-width 10000 --time-share 0.05 --bin-masks 2 --bin-width 27 --speeds 0.9,1.0,1.1)
batch=(--max-tokens 55000 --update-freq 16 --max-update 95000)
