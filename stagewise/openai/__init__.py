"""OpenAI's interface without HTTP, for the server and `--input`.

fields.py   which fields a request may have, and what each may be
job.py      a checked request: its fields as SamplingParams, its prompts as tokens
chat.py     a chat's messages as a prompt; forms.py: structured output
answers.py  the shape of answers, whole and in chunks; errors.py: the shape of errors
limits.py   how much one request may ask for
lines.py    lines of batch files
"""
