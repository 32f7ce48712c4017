"""Fields of config.json that name no architecture, of transformers 2.0 to 5.24.

Every class of configurations in transformers has them, so that every importer accepts them. Any
other field is the architecture's: an importer reads it, checks its value, or refuses it by name.
"""

import re
from typing import Any

# Descriptions of fields, and patterns of their names.
_BOOKKEEPING = {
    "names: of the model, its files, and the programs that made it": (
        r"_(?!remove_final_layer_norm).*|architectures|dtype|finetuning_task|language|model_type|name|name_or_path"
        r"|tokenizer_class|torch_dtype|transformers_version|unsloth_.*|vocab_size"
    ),
    "ids of special tokens, which importers read": (
        r"(bos|cls|decoder_start|eos|mask|pad|sep|unk)_token_ids?"
    ),
    "the labels of a classifier, which its importer reads": (
        r"id2label|label2id|num_labels|problem_type"
    ),
    "what a call returns besides logits": (
        r"output_(attentions|hidden_states|past)|return_dict|tie_last_hidden_states|use_cache"
        r"|use_return_dict"
    ),
    "how logits are computed, in the same or in another precision": (
        r"attention_softmax_in_fp32|attn_implementation|bias_dropout_fusion|chunk_size_feed_forward"
        r"|experts_implementation|masked_softmax_fusion|offset_alibi|pretraining_tp|skip_bias_add"
        r"|skip_bias_add_qkv|slow_but_exact|torchscript|use_bfloat16|xla_device"
    ),
    "training: initial weights, memory, dropout of heads and of layers, and the loss": (
        r"((en|de)coder_)?layerdrop|(seq_)?classif(ier)?_dropout(_prob)?|gradient_checkpointing"
        r"|init_std|initializer_(factor|range)|qa_dropout|tf_legacy_loss"
    ),
    "heads of other tasks, and the training of the model": (
        r"generator_size|n_ctx|predict_special_tokens|replacing_rate|seq_length"
        r"|student_(en|de)coder_layers|summary_.*"
    ),
    "fields that programs before 2021 wrote, and that no model has": (
        r"directionality|down_scale_factor|gap_size|net_structure_type|num_memory_blocks"
        r"|tie_weights_"
    ),
    "a pipeline, or another program that runs the model": (
        r"prefix|sbert_ce_default_activation_function|sentence_transformers|task_specific_params"
    ),
}
# The same of settings of ``generate``, which transformers 2 to 4 write to config.json, too.
_SEARCH = {
    "lengths": (
        r"(max|min)_(length|new_tokens)|max_time|stop_strings|early_stopping"
        r"|(exponential_decay_)?length_penalty"
    ),
    "search": (
        r"constraints|diversity_penalty|do_sample|dola_layers|force_words_ids|guidance_scale"
        r"|num_(beam_groups|beams|return_sequences)|penalty_alpha|token_healing"
    ),
    "sampling": (
        r"(epsilon|eta)_cutoff|min_p|temperature|top_(h|k|p)|typical_p|watermarking_config"
    ),
    "tokens": (
        r"bad_words_ids|(begin_)?suppress_tokens|force_bos_token_to_be_generated"
        r"|forced_((bos|eos)_token_id|decoder_ids)"
        r"|(encoder_)?(no_repeat_ngram_size|repetition_penalty)|remove_invalid_values"
        r"|renormalize_logits|sequence_bias"
    ),
    "outputs, speed and memory": (
        r"assistant_.*|cache_(config|implementation)|compile_config|continuous_batching_config"
        r"|disable_compile|is_assistant|low_memory|max_cache_len|max_matching_ngram_size"
        r"|num_assistant_tokens(_schedule)?|output_(logits|scores)|prefill_chunk_size"
        r"|prompt_lookup_num_tokens|return_dict_in_generate|speculation_type|target_lookbehind"
        r"|use_mtp"
    ),
}
_BOOKKEEPING_NAMES = re.compile("|".join(_BOOKKEEPING.values()))
_SEARCH_NAMES = re.compile("|".join(_SEARCH.values()))
_UNSET: tuple[Any, ...] = (None, False, [], {})  # also 0, which is equal to False


def names_no_architecture(name: str, value: object) -> bool:
    """Returns whether a field changes no logit, with any value or since it is unset."""
    is_bookkeeping = bool(_BOOKKEEPING_NAMES.fullmatch(name))
    return value in _UNSET or is_bookkeeping or is_search_setting(name)


def is_search_setting(name: str) -> bool:
    """Returns whether a field is a setting of ``generate``."""
    return bool(_SEARCH_NAMES.fullmatch(name))
