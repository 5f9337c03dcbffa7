"""Errors as clients see them: a status and OpenAI's `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Mapping

RETRY = {"Retry-After": "1"}  # seconds; a step, which may free a place, takes less


class APIError(ValueError):
    """An error for the client.

    Args:
        status: of HTTP.
        message: names what is wrong, where, and the limit.
        param: the field of the request that is wrong.
        code: a name for programs.
        headers: additional ones for the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    def to_dict(self) -> dict:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> APIError:
    return APIError(400, message, param=param, code=code)
