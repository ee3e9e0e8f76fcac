"""Model folders of Hugging Face, read as they are: no transformers, and for safetensors no torch.

Every setting of ``config.json`` is read, known to change no output, or refused by name. Weights have the
names of `TransformerConfig.weight_shapes`; each is made of the file's when it is asked for, in fp32 whatever
the file holds.
"""
