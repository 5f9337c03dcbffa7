"""The nine milestones on the way to your own engine: what each asks for, the functions to write for it, and the
project's own tests that it has to pass, in the order in which one writes what they need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Milestone:
    """A milestone.

    Attributes:
        stage: the stage whose files make up the skeleton, and in whose place the engine is tested.
        minutes: how long it takes to write, at least and at most.
        to_write: file -> functions of which the skeleton has only signature and docstring.
        parts: what to look at, a file of tests/ (or the path of another), and names of its tests, all without `test_`.
        later: file -> functions of a later milestone -> their body until then.
        added: files that the stage does not have -> where a solution is; of C, `start` takes what is above TO_WRITE.
    """

    number: int
    title: str
    stage: str
    minutes: tuple[int, int]
    to_write: Mapping[str, Sequence[str]]
    parts: Sequence[tuple[str, str, str]]
    later: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"milestone {self.number}, {self.title}" if self.number else self.title

    @property
    def text(self) -> str:
        """Where it is described."""
        return "exercises/engine.md, " + (f"milestone {self.number}" if self.number else "Other engines")

    @property
    def tests(self) -> dict[str, str]:
        """Test, without its parameters -> what to look at if it fails."""
        return {
            f"{file if '/' in file else f'tests/test_{file}'}.py::test_{name}": look
            for look, file, names in self.parts
            for name in names.split()
        }


# Tests of whole engines, which every stage passes.
WHOLE = [
    ("the whole engine", "parity", "logits_and_greedy_tokens greedy_stories_equal_generate"),
    ("the whole engine", "invariance", "alone_shuffled_and_mixed seeds results_come_in_the_order_of_the_prompts"),
    ("the whole engine, and how requests end", "stops",
     "end_token ignore_eos min_tokens_holds_the_end_token_off end_token_in_the_prompt_ends_nothing "
     "stop_text_across_tokens stop_text_of_the_prompt_or_never_reached stop_tokens every_row_stops_for_itself "
     "length_ends_at_the_context no_tokens"),
    ("the whole engine, and a request that fails", "errors",
     "a_request_that_fails_alone_ends_alone a_model_that_gives_no_numbers_ends_its_requests_not_the_engine"),
    ("what is refused", "limits", "bad_prompts bad_prompt_lists bad_sampling_params unknown_engine_argument"),
]  # fmt: skip
STREAMS = [
    ("streams", "stream",
     "stream_equals_generate events_carry_logprobs_counts_and_the_stop a_token_per_event_as_it_is_made "
     "a_possible_stop_text_is_held_back as_completed_gives_every_result_once"),
]  # fmt: skip
JOINING = [
    ("the whole engine", "continuous",
     "arrivals_and_aborts_at_random_steps many_requests_through_eight_slots a_step_that_fails_late_loses_no_slot "
     "priority_needs_its_policy"),
]  # fmt: skip

LINEAR = "exercises/kernel/test_linear"

MILESTONES = [
    Milestone(
        1, "one sequence", "stage01_single", (90, 120),
        {
            "engine.py": ("Engine.run", "Engine.step", "Engine.commit"),
            "batch.py": ("Batch.of",),
            "runner.py": ("Runner.forward",),
            "model.py": ("Attention.forward", "Attention._split_heads", "MLP.forward", "Layer.forward", "GPT2.forward"),
            "sampler.py": ("sample", "choose", "keep_top_k", "keep_top_p", "keep_min_p", "draw"),
            "request.py": ("Request.add", "Request.finish"),
            "support/text.py": ("Text._append", "Text.num_final"),
        },
        parts=[
            ("model.py: Attention._split_heads", "verbs", "heads_are_pieces_of_a_vector"),
            ("model.py: Attention, MLP, Layer", "verbs", "parts_of_the_model"),
            ("model.py: GPT2.forward", "verbs", "the_model"),
            ("batch.py: Batch.of", "verbs", "batch_of_one_sequence"),
            ("runner.py: Runner.forward", "verbs", "forward_of_one_sequence"),
            ("sampler.py: sample, choose", "sampler",
             "greedy_takes_penalties_but_no_filter penalties_before_there_is_output logprobs_are_of_the_raw_logits "
             "logits_that_are_not_finite_are_an_error"),
            ("sampler.py: choose, draw", "sampler",
             "a_draw_never_takes_what_was_dropped extreme_temperatures every_rare_token_can_be_drawn"),
            ("sampler.py: keep_top_k", "sampler", "ties_at_the_kth_place_stay"),
            ("sampler.py: keep_top_p, keep_min_p", "sampler",
             "ties_at_the_edge_of_top_p the_edges_of_a_draw top_p_comes_before_min_p filters_equal_hugging_face"),
            ("sampler.py: choose", "sampler", "frequencies_follow_the_distribution"),
            ("request.py: Request.add, Request.finish", "stops",
             "what_a_request_keeps_of_a_token what_ends_a_request"),
            ("support/text.py: Text._append, Text.num_final", "stops", "which_text_is_final"),
            ("engine.py: Engine.commit", "verbs", "commit"),
            ("engine.py: Engine.run, Engine.step", "verbs", "what_is_computed"),
            *WHOLE,
            *STREAMS,
        ],
    ),
    Milestone(
        2, "a batch", "stage02_static_batch", (60, 90),
        {
            "engine.py": ("Engine.run", "Engine.next_batch", "Engine.step", "Engine.commit"),
            "batch.py": ("Batch.of", "Batch.num_padding_tokens"),
            "runner.py": ("Runner.forward",),
            "model.py": ("GPT2.forward",),
        },
        parts=[
            ("batch.py: Batch.of, Batch.num_padding_tokens", "verbs", "batch_is_a_rectangle"),
            ("model.py: GPT2.forward; runner.py: Runner.forward", "verbs", "forward_of_a_rectangle"),
            ("engine.py: Engine.commit", "verbs", "commit"),
            ("engine.py: Engine.run, Engine.next_batch", "verbs", "run_takes_the_longest_prompts_first"),
            ("engine.py: Engine.run, Engine.step", "trace",
             "stage02_runs_every_batch_to_its_last_row finished_rows_are_carried_not_sampled"),
            ("engine.py: Engine.run, Engine.step", "verbs", "what_is_computed"),
            *WHOLE,
            ("engine.py", "invariance", "batch_size_and_order_do_not_matter"),
            *STREAMS,
        ],
    ),
    Milestone(
        3, "a cache", "stage03_kvcache", (60, 90),
        {
            "engine.py": ("Engine.check_fits", "Engine.run", "Engine.next_batch", "Engine.cache_len", "Engine.step"),
            "batch.py": ("Batch.of",),
            "runner.py": ("Runner.new_cache", "Runner.forward"),
            "kv_cache.py": ("KVCache.update", "bytes_per_token"),
            "model.py": ("Attention.forward", "GPT2.forward"),
        },
        parts=[
            ("kv_cache.py: KVCache.update", "verbs", "update_returns_all_columns_as_views"),
            ("kv_cache.py: bytes_per_token", "kv_cache", "bytes_per_token"),
            ("batch.py: Batch.of", "verbs", "batch_takes_what_is_not_in_the_cache"),
            ("model.py: Attention.forward, GPT2.forward; runner.py: Runner.new_cache, Runner.forward", "verbs",
             "forward_goes_on_from_the_cache"),
            ("engine.py: Engine.run, Engine.next_batch", "verbs", "run_takes_the_longest_prompts_first"),
            ("engine.py: Engine.run, Engine.step", "verbs", "what_is_computed"),
            ("engine.py: Engine.run, Engine.step", "kv_cache",
             "the_trace_shows_prefill_and_decode_apart a_cache_belongs_to_its_batch one_cache_at_a_time"),
            ("engine.py: Engine.next_batch, Engine.cache_len", "kv_cache",
             "as_many_rows_as_have_room a_batch_that_does_not_fit_is_split reserved_and_used"),
            ("engine.py: Engine.check_fits", "kv_cache", "a_request_that_can_never_fit"),
            ("engine.py: Engine.check_fits", "limits", "bad_prompts"),
            ("model.py: GPT2.forward", "kv_cache", "rows_that_ended_are_carried_past_the_last_position"),
            *WHOLE,
            ("engine.py", "invariance", "batch_size_and_order_do_not_matter"),
            *STREAMS,
        ],
    ),
    Milestone(
        4, "slots", "stage04_continuous", (90, 120),
        {
            "scheduler.py": (
                "Scheduler.add", "Scheduler.schedule", "Scheduler._can_admit", "Scheduler._take", "Scheduler._admit",
                "Scheduler.remove",
            ),
            "engine.py": ("Engine.add", "Engine.abort", "Engine.step", "Engine.commit"),
            "batch.py": ("Batch.of",),
            "kv_cache.py": ("KVCache.update",),
            "model.py": ("Attention.forward", "attend", "GPT2.forward"),
        },
        parts=[
            ("scheduler.py: Scheduler.add, Scheduler.schedule", "verbs", "the_four_steps_of_the_chapter"),
            ("scheduler.py: Scheduler._can_admit, Scheduler._admit", "verbs", "who_is_admitted"),
            ("scheduler.py: Scheduler._admit, Scheduler.remove", "verbs", "slots_are_given_back"),
            ("scheduler.py: Scheduler.add", "continuous",
             "policies who_comes_back_has_the_same_place the_shortest_policy_starves_nobody"),
            ("batch.py: Batch.of", "continuous", "a_batch_is_flat"),
            ("kv_cache.py: KVCache.update", "verbs", "update_writes_to_slots"),
            ("model.py: Attention.forward, attend, GPT2.forward", "verbs",
             "forward_of_a_flat_batch"),
            ("engine.py: Engine.add, Engine.abort", "verbs", "an_abort"),
            ("engine.py: Engine.commit", "verbs", "commit"),
            ("engine.py: Engine.step", "verbs", "what_is_computed"),
            *WHOLE,
            *JOINING,
            ("engine.py", "invariance", "batch_size_and_order_do_not_matter"),
            *STREAMS,
        ],
    ),
    Milestone(
        5, "blocks", "stage05_paged", (90, 120),
        {
            "block_manager.py": (
                "BlockManager.slot_mapping", "BlockManager.num_blocks_to_allocate",
                "BlockManager.allocate", "BlockManager.can_append", "BlockManager.append",
                "BlockManager.free", "BlockManager._pop_free", "BlockManager._incref", "BlockManager._decref",
            ),
            "scheduler.py": (
                "Scheduler.schedule", "Scheduler._can_admit", "Scheduler._admit", "Scheduler._reserve_blocks",
                "Scheduler.preempt",
            ),
            "engine.py": ("Engine.check_fits", "Engine.step"),
            "batch.py": ("Batch.of",),
            "kv_cache.py": ("KVCache.write",),
            "attention.py": ("paged_attention",),
            "model.py": ("Attention.forward",),
        },
        later={"block_manager.py": {
            "BlockManager.cache_full_blocks": "return  # milestone 6",
            "BlockManager._find_cached": "return []  # milestone 6",
        }},
        parts=[
            ("block_manager.py", "block_manager", "blocks_are_taken_when_tokens_need_them"),
            ("scheduler.py: Scheduler.schedule", "verbs", "the_four_steps_of_the_chapter"),
            ("scheduler.py: Scheduler._can_admit, Scheduler._admit", "verbs", "who_is_admitted"),
            ("scheduler.py: Scheduler._can_admit", "verbs", "admission_waits_for_blocks"),
            ("scheduler.py: Scheduler._reserve_blocks, Scheduler.preempt", "verbs",
             "the_last_in_rank_gives_its_blocks_back blocks_go_to_the_first_in_rank"),
            ("scheduler.py: Scheduler._reserve_blocks, Scheduler.preempt", "admission",
             "a_step_that_preempts_admits_nobody"),
            ("scheduler.py", "admission", "nobody_starves random_runs"),
            ("kv_cache.py: KVCache.write", "verbs", "write_puts_keys_into_blocks"),
            ("attention.py: paged_attention", "attention", "random_steps"),
            ("batch.py: Batch.of", "verbs", "batch_has_slots_from_the_tables"),
            ("model.py: Attention.forward", "verbs", "forward_of_a_flat_batch"),
            ("engine.py: Engine.step", "verbs", "what_is_computed"),
            ("engine.py: Engine.check_fits", "paged", "a_request_that_can_never_fit"),
            *WHOLE,
            *JOINING,
            ("block_manager.py, scheduler.py", "paged", "arrivals_and_aborts_in_any_pool the_watermark"),
            *STREAMS,
        ],
    ),
    Milestone(
        6, "sharing", "stage05_paged", (60, 90),
        {
            "block_manager.py": ("BlockManager.cache_full_blocks", "BlockManager._find_cached"),
        },
        parts=[
            ("block_manager.py: BlockManager.cache_full_blocks, BlockManager._find_cached", "block_manager",
             "a_prefix_is_found_whoever_holds_it one_token_is_left_to_compute "
             "a_block_of_almost_the_same_tokens_is_another_block "
             "the_same_tokens_after_another_prefix_are_another_block"),
            ("block_manager.py: BlockManager.free, BlockManager._pop_free", "block_manager",
             "what_can_not_be_found_goes_first least_recently_used_goes_first_and_tails_before_heads "
             "an_evicted_head_is_not_found_and_its_tail_is_never_mistaken"),
            ("block_manager.py", "block_manager",
             "a_block_that_is_not_full_can_not_be_found found_blocks_are_counted a_prefix_id_is_never_used_again"),
            ("scheduler.py: Scheduler._admit", "verbs", "what_was_found_is_counted_once"),
            ("block_manager.py", "block_manager", "against_the_model"),
            ("block_manager.py", "paged",
             "hits_between_requests_and_calls_and_within_a_step what_was_generated_is_found_too "
             "a_prompt_in_pieces_is_found_as_far_as_it_is_computed n_completions_share_their_prompt "
             "hits_under_pressure a_failed_step_leaves_nothing_to_be_found how_many_tokens_may_be_found "
             "many_requests_lose_no_block"),
            ("the whole engine", "admission", "random_runs"),
            ("the whole engine", "paged",
             "arrivals_and_aborts_in_any_pool completions_do_not_notice_each_other everything_at_once"),
        ],
    ),
    Milestone(
        7, "speculation", "stage07_speculative", (60, 90),
        {
            "drafters.py": ("PromptLookup._look_up",),
            "batch.py": ("Batch.verified", "Batch.was_right"),
            "engine.py": ("Engine.step", "Engine.verify"),
            "speculator.py": ("Speculator.draft", "Speculator.max_drafts", "Speculator.truncate_at_eos"),
            "block_manager.py": ("BlockManager.extend", "BlockManager.trim"),
        },
        parts=[
            ("drafters.py: PromptLookup._look_up", "speculative", "prompt_lookup prompt_lookup_goes_on_where_it_was"),
            ("block_manager.py: BlockManager.extend, BlockManager.trim", "verbs", "room_ahead_and_back"),
            ("speculator.py: Speculator.draft, Speculator.max_drafts", "verbs", "who_gets_guesses"),
            ("speculator.py: Speculator.truncate_at_eos", "verbs", "guesses_end_before_an_end_token"),
            ("speculator.py: Speculator.draft", "verbs", "guesses_take_what_is_left"),
            ("batch.py: Batch.verified, Batch.was_right", "verbs", "verified"),
            ("engine.py: Engine.step, Engine.verify", "verbs", "a_step_with_guesses"),
            *WHOLE,
            ("the whole engine", "speculative",
             "any_drafter no_draft_goes_beyond_the_end a_stop_text_within_accepted_tokens "
             "no_guess_is_ever_findable shared_blocks_have_no_guesses in_a_pool_that_is_too_small "
             "a_request_that_fails_behind_right_guesses random_requests"),
            *STREAMS,
        ],
    ),
    Milestone(
        8, "int8", "stage08_int8", (45, 75),
        {
            "quantize.py": (
                "quantize", "Int8Linear.forward", "Int8Embedding.forward", "Int8Embedding.logits", "quantize_on_load",
            ),
        },
        parts=[
            ("quantize.py: quantize", "int8",
             "rows_that_one_can_check_by_hand rows_in_any_number_of_dimensions numbers_too_small_for_a_unit "
             "each_number_becomes_the_nearest_integer"),
            ("quantize.py: Int8Linear.forward", "int8", "by_torch the_sums_are_exact"),
            ("quantize.py: Int8Embedding.forward, Int8Embedding.logits", "int8", "embedding"),
            ("quantize.py: quantize_on_load", "int8", "which_tensors_are_taken"),
            ("the whole engine", "int8",
             "against_the_formula_in_hugging_faces_model as_is_it_is_the_stage_before weights_are_rounded_once "
             "what_auto_comes_to numbers_that_are_not_finite_end_their_request_alone"),
        ],
    ),
    Milestone(
        9, "your own kernel", "stage05_paged", (60, 90),
        {"linear.py": ("Linear.__init__", "Linear.forward", "use_own_kernel")},
        parts=[
            ("linear.py: Linear; kernels/linear.c: pack, linear", LINEAR, "any_size"),
            ("linear.py: Linear.forward", LINEAR, "views"),
            ("linear.py: Linear.__init__", LINEAR, "weights_are_packed_once weights_are_kept_once"),
            ("kernels/linear.c: linear", LINEAR, "the_same_bits"),
            ("linear.py: use_own_kernel", LINEAR, "other_dtypes"),
            ("runner.py: Runner.__init__", LINEAR, "all_layers_of_the_engine"),
            *WHOLE[:2],
        ],
        added={"linear.py": "exercises/kernel/linear.py", "kernels/linear.c": "exercises/kernel/linear.c"},
    ),
]  # fmt: skip

# What an engine promises that is not built like a stage: it needs LLM and SamplingParams, and nothing else.
CONTRACT = Milestone(
    0, "the public contract", "stage02_static_batch", (0, 0), {},
    [
        ("LLM.generate", "parity", "greedy_stories_equal_generate"),
        ("LLM.generate", "stops", "length_ends_at_the_context end_token ignore_eos every_row_stops_for_itself "
         "stop_text_across_tokens stop_tokens"),
        ("SamplingParams", "invariance",
         "results_come_in_the_order_of_the_prompts alone_shuffled_and_mixed batch_size_and_order_do_not_matter"),
    ],
)  # fmt: skip
