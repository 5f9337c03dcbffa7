"""An HTTP server with OpenAI's interface on top of a stage's `AsyncLLM`.

     bytes ── app.py ────── openai/job.py ── service.py ─────────────── openai/answers.py ── responses.py ── bytes
              gate, route   Job: checked     Run: a task for each choice   choices, chunks    whole, or a stream
                                              │          ▲
                                              ▼ generate │ StreamEvents
                                             AsyncLLM: the engine's thread

A stream sends pieces of choices as they come, and a whole answer is all of them put together, so the two can't differ.
`server.py` starts and ends all of this. `connection.py` limits what a client may send, and `feed.py` lets calls take
turns; `live.py`, `levers.py` and `page.py` are the page that shows the engine.
"""
