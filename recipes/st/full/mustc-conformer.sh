# MuST-C English-German, Conformer with attention as ESPnet trains it (egs2/must_c_v2/st1/conf/tuning/
# train_st_conformer_asrinit_v2.yaml, github.com/espnet/espnet): 312,000 frames a step, 40 epochs of sound at three
# speeds; 4,000 pieces. There the encoder begins as a recogniser's (--init-encoder, of recipes/asr/full), which goes
# on learning the transcript beside it by a decoder and a CTC head of its own; here the CTC head learns the
# translation with its weight.
architecture=conformer
flags=(--d-model 256 --encoder-layers 12 --decoder-layers 6 --encoder-ffn 2048 --decoder-ffn 2048
  --encoder-heads 4 --decoder-heads 4 --conv-kernel 31 --subsampling 4 --share-embeddings none
  --norm-eps 1e-12 --batch-norm-eps 1e-5 --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1
  --ctc-weight 0.3 --label-smoothing 0.1 --clip-norm 5 --lr 0.002 --warmup-updates 25000
  --time-masks 5 --time-width 10000 --time-share 0.05 --bin-masks 2 --bin-width 27 --speeds 0.9,1.0,1.1)
batch=(--max-tokens 39000 --update-freq 8 --max-update 60000)
