"""Answer a file of requests, as OpenAI's batch interface does.

    python -m stagewise.serving.batch INPUT.jsonl -o OUTPUT.jsonl

A line of the input is {"custom_id": …, "method": "POST", "url": "/v1/completions", "body": {…}}, the body as the server
takes it; a line of the output {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}. Each is
written as soon as it is done, so their order is free. A body that is refused is answered as by the server, with its
status and OpenAI's error object; of a line that is no request `response` is null, and `error` says what is wrong.

Exit status: 0 done, 1 some lines are errors, 2 bad input, 130 interrupted.
"""

import asyncio
import functools
import sys
import uuid
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

from ..batch_file import append as append_line
from ..console import Outcome, flush_streams, prepare_streams, tell
from ..flags import pick_stage
from ..openai.errors import APIError, bad_request
from ..openai.fields import OBJECT, TEXT, Fields
from ..openai.limits import Limits
from ..openai.lines import refusal, response
from ..stages import SERVING
from .__main__ import build_parser, make_service
from .events import to_json
from .reading import parse_json
from .service import Run, Service

LINE = {"custom_id": TEXT, "method": TEXT, "url": TEXT, "body": OBJECT}
CHATS = {"/v1/completions": False, "/v1/chat/completions": True}
LINES_AT_ONCE = 64  # more than run at once, so that the engine never waits for a line to be read
NO_LIMIT = 2**62  # of the queue: what waits is bounded by the lines at once


class BatchFile:
    """Answers lines, several at once.

    Args:
        append: writes a line.

    Attributes:
        num_lines, num_errors: so far.
    """

    def __init__(self, service: Service, append: Callable[[bytes], None]):
        self.service, self.append = service, append
        self.num_lines = self.num_errors = 0
        self._ids: set[str] = set()
        self._places = asyncio.Semaphore(LINES_AT_ONCE)

    async def run(self, file: BufferedReader) -> None:
        tasks: set[asyncio.Task] = set()
        try:
            for number, raw in enumerate(file, start=1):
                if raw.strip():
                    await self._places.acquire()
                    tasks = {task for task in tasks if not task.done() or task.result()}
                    task = asyncio.create_task(self._answer(raw, number))
                    task.add_done_callback(lambda _: self._places.release())
                    tasks.add(task)
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, raw: bytes, number: int) -> None:
        """Answer a line, whatever is wrong with it."""
        name, fields, status = uuid.uuid4().hex, {}, 0
        try:
            fields = parse_json(raw, "the line")
            line = self._read(fields)
            status, body = await self._respond(line["body"], CHATS[line["url"]])
            answer = response(f"batch_req_{name}", line["custom_id"], f"req_{name}", body, status)
        except APIError as error:
            custom_id, message = fields.get("custom_id"), f"line {number}: {error.message}"
            answer = refusal(f"batch_req_{name}", custom_id, message, error.code or "invalid_line")
        self.num_errors += status != 200
        self.num_lines += 1
        self.append(to_json(answer))

    def _read(self, line: dict) -> Fields:
        """Raises APIError for what is no request."""
        fields = Fields(line, LINE)
        if "custom_id" not in fields or fields["custom_id"] in self._ids:
            raise bad_request("custom_id is there twice" if "custom_id" in fields else "custom_id is missing")
        self._ids.add(fields["custom_id"])
        if fields["method"] != "POST" or fields["url"] not in CHATS:
            raise bad_request(f"method must be POST, and url one of {', '.join(CHATS)}")
        if "body" not in fields:
            raise bad_request("body is missing")
        return fields

    async def _respond(self, body: dict, chat: bool) -> tuple[int, dict]:
        """What the server would answer: a status and a body."""
        try:
            job = await asyncio.to_thread(self.service.job, body, chat=chat)
            if job.fields["stream"]:
                raise bad_request("stream must be false in a batch", param="stream")
            async with Run(self.service, job) as run:
                return 200, await self.service.whole(run)
        except APIError as error:
            return error.status, error.to_dict()


async def answer_file(service: Service, file: BufferedReader, append: Callable[[bytes], None]) -> BatchFile:
    batch = BatchFile(service, append)
    await batch.run(file)
    return batch


def main(argv: list[str] | None = None) -> int:
    """Answer a file; returns the exit status."""
    stage = pick_stage(argv, SERVING)
    prepare_streams()
    parser = build_parser(stage, "python -m stagewise.serving.batch", __doc__)
    parser.add_argument("input", type=Path, metavar="INPUT.jsonl")
    parser.add_argument("-o", "--output", type=Path, metavar="OUTPUT.jsonl", required=True, help="must not exist yet")
    args, outcome = parser.parse_args(argv), Outcome(parser.prog)
    with outcome, args.input.open("rb") as file:
        if args.output.exists():
            raise ValueError(f"--output {args.output} exists: remove it, or name another")
        service = make_service(stage, args, Limits(max_queue_size=NO_LIMIT, max_queue_tokens=NO_LIMIT))
        with service.engine, args.output.open("xb", buffering=0) as output:
            append = functools.partial(append_line, output)
            batch = asyncio.run(answer_file(service, file, append))
        if batch.num_errors:
            tell(f"{parser.prog}: {batch.num_errors} of {batch.num_lines} lines are errors, see {args.output}")
            outcome.status = 1
    flush_streams()
    return outcome.status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
