"""The trace: its schema, and a reader that refuses what it does not know.

A stage writes a trace with `--trace FILE`: lines of JSON, a header and then a line per step (a forward pass). What
stands in them is said here and nowhere else; each stage's `trace.py` writes it. Times are seconds by one clock that
begins anywhere. A request is known by its `request_id`, and each of its completions by that and its `index` (0 where
there is one only).

Header: {"trace": 2, …}
    trace           the version of this schema
    stage           "stage01_single" … "stage06_fast"
    model           as --model names it
    options         the engine's options, by name: max_num_seqs, max_num_batched_tokens, block_size, policy …
    max_model_len   the longest sequence, in tokens
    num_blocks      of the KV cache (stages 5, 6)
    bytes_per_token of the KV cache (from stage 3)

Step:
    step            counts from 0
    start, seconds  when its forward pass began, and how long it took from there to the end of the commit
    parts           seconds of "schedule", "build", "forward", "sample", "commit" (stages 1 to 3 schedule nothing).
                    The first two are before `start`, the others make up `seconds`
    before          events since the last step, up to this forward pass, in their order
    rows            what the forward pass computed, see below
    after           events of what came of it, in their order
    texts           token id (as text) -> its text, of the tokens that this trace has not named before
    kv_tokens_reserved, kv_tokens_used
                    of the KV cache during the step, in tokens (from stage 3; else null)
    num_blocks_shared, num_blocks_saved
                    blocks that several completions hold, and how many more there would be if each had its own (5, 6)
    free            the free blocks in the order in which they would be taken, as runs [first, count] of rising
                    numbers (stages 5, 6; else null), during the step
    findable        those of the free blocks that the prefix cache can still find (stages 5, 6; else null)

Row: one completion's part in the forward pass.
    request_id, index
    phase           "prefill" until its first token, then "decode"
    start           the position of the first token that it computes; it computes num_tokens from there: which tokens
                    these are its sequence says (prompt and output so far)
    num_tokens      0 for a finished row that is carried along
    num_padding     positions that went through the model for nothing
    slot            its row of the KV cache (stages 3, 4; else null)
    blocks          its block table (stages 5, 6; else null)

Event: {"kind": …, "request_id": …, "index": …, …}
    queued          a request came: prompt_token_ids, output_token_ids (not empty if it was under way when the trace
                    began), max_tokens, n (completions that are wanted), place ([key, arrival]: the queue is in the
                    order of place and index; null in stages 1 to 3, whose queue is in the order of these events)
    admitted        it runs from this step on: slot (stages 3, 4), num_cached_tokens (stages 5, 6: so many tokens were
                    found in the prefix cache, and are not computed)
    refused         it is the next in the queue and could not be admitted to this step: reason, one of
                      "running"   max_num_seqs run already
                      "budget"    the step has no tokens left
                      "whole"     its prompt does not fit into the step's rest whole (chunked prefill is off):
                                  needed, left
                      "scores"    the step makes no more logits of prompts
                      "blocks"    needed, free, reserve: blocks
                      "preempted" somebody was preempted just now: memory is short
    preempted       it waits again, without its memory
    copied          copy-on-write: source and target, blocks
    evicted         block: one that could still be found was taken for something else
    token           it got the token token_id. An index that was not named before is another completion of its
                    request, with the same prompt: where several are wanted, the step that computes the end of the
                    prompt gives each its first token
    forked          such a completion runs on, in the blocks of its sibling `parent` (an index); or, with running
                    false, waits. It comes behind the token; one that has ended with it is not forked
    beams           beam search: the request's beams are replaced, beam i by parents[i] with token_ids[i] behind it.
                    Beams are known by their index; one that is no parent is dropped
    finished        reason: "stop", "length" or "abort" (or "beams": the search is done)
    restarted       a step was cut short: everybody waits again, all memory is free and nothing can be found in it
"""
