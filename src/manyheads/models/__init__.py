"""Real models, run: loaded through transformers, read text, and measured against what was predicted of them.

    load       a folder, a GGUF file or a hub id as a model of torch, with its tokenizer; never a pickle, never its code
    unpacked   GGUF files dequantised once and kept in the user's cache
    reading    the text that models are measured on
    scoring    loss and perplexity on it, and on the same tokens shuffled
    counting   parameters that were loaded, against those that were predicted
    held       bytes that the model's own cache holds, against those that were predicted
    xray       all of it as one report

This room needs the extra `models`; torch and transformers are imported when a function is called, not before.
"""
