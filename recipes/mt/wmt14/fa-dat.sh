# DA-Transformer with fuzzy alignment (Ma et al. 2023, arxiv.org/abs/2303.06662, and the command in its
# repository's README): goes on with what `dag` trained, which --finetune-from-model names, for 5,000 steps of
# 256,000 tokens; n-grams of two tokens, glancing 0.1.
load dag
flags+=(--ngram-order 2 --glancing 0.1 --lr 0.0002 --warmup-updates 500)
batch=(--max-tokens 4096 --update-freq 8 --max-update 5000)
