# AISHELL-1, Paraformer as FunASR trains it (examples/aishell/paraformer/conf/
# paraformer_conformer_12e_6d_2048_256.yaml, github.com/modelscope/FunASR; Gao et al. 2022,
# arxiv.org/abs/2206.08317): 25,000 frames and characters on each of two GPUs, 150 epochs of sound at three speeds
# by turns. There the filterbank has a Hamming window ("window": "hamming" in input.json).
architecture=paraformer
flags=(--d-model 256 --encoder-layers 12 --decoder-layers 6 --encoder-ffn 2048 --decoder-ffn 2048
  --encoder-heads 4 --decoder-heads 4 --conv-kernel 15 --subsampling 4 --share-embeddings none
  --predictor depthwise --tail-threshold 0.45 --norm-eps 1e-12 --batch-norm-eps 1e-5
  --dropout 0.1 --activation-dropout 0.1
  --ctc-weight 0.3 --label-smoothing 0.1 --sampling-ratio 0.4 --quantity-weight 1 --clip-norm 5 --lr 0.0005
  --warmup-updates 30000 --time-masks 2 --time-width 40 --bin-masks 2 --bin-width 30 --speeds 0.9,1.0,1.1)
batch=(--max-tokens 25000 --update-freq 2 --max-update 162000)
